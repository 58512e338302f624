//! The write probe as both its sides know it: what `mrscope-write-probe` is asked, by its
//! arguments, and what it answers, by one JSON object; and the asker's call of it. No verbs.

mod answer;
mod call;
mod child;
mod flags;
mod options;

pub use answer::{Answer, AnswerError, Failure, MAX_ANSWER_BYTES, Reason, Report};
pub use call::{NoReport, call, program_beside};
pub use child::wait;
pub use options::{OptionsError, Pages, ProbeOptions};
