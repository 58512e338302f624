//! mrscope: what RDMA memory costs a host, told to Prometheus.
//!
//! Everything flows one way: a kernel event changes a BPF map ([`ebpf`]), a snapshot of the maps
//! ([`model`]) advances the [`ledger`] of processes, a [`collector`] writes both into a checked page
//! ([`metrics`]), and [`serve`] hands its text to whoever asks. [`config`] holds what was chosen. Apart
//! from all that [`bench`] measures what MRs cost on this host.

pub mod bench;
pub mod check;
pub mod cli;
pub mod collector;
pub mod config;
pub mod ebpf;
pub mod host;
pub mod ledger;
pub mod log;
pub mod metrics;
pub mod model;
pub mod nldev;
pub mod probe;
pub mod serve;
