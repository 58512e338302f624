//! Words: the catalogue of metrics, a page that takes nothing but them, and its text.

mod catalogue;
pub mod docs;
mod encode;
mod page;

pub use catalogue::{
    Fold, Kind, Metric, TABLES, devices, exporter, find, hugepages, metrics, mlock, mr, placement,
    process, resources, tlb, write_probe,
};
pub use encode::{CONTENT_TYPE, EncodeError, text};
pub use page::{Family, Page, PageError, Sample, Value};
