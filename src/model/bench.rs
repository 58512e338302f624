//! What `mrscope bench` is asked for.

/// The options of a bench.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchOptions {
    /// Of each MR; a multiple of [`BenchOptions::SIZE_STEP`].
    pub mr_bytes: u64,
    pub rounds: u32,
    /// None: the first that has an active port.
    pub device: Option<String>,
    /// None: the first that is active.
    pub port: Option<u8>,
    pub json: bool,
}

impl BenchOptions {
    /// The smallest page there is.
    pub const SIZE_STEP: u64 = 4 << 10;
    /// What the write probe takes.
    pub const SIZE_LIMIT: u64 = 1 << 40;
    pub const ROUNDS_LIMIT: u32 = 1000;
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self { mr_bytes: 64 << 20, rounds: 5, device: None, port: None, json: false }
    }
}
