//! Pages fetched one after another while something else goes on, each compared with those before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::page::Page;

/// Scrapes until it is ended, or until a page was wrong.
pub struct Watch {
    over: Arc<AtomicBool>,
    scraper: JoinHandle<Result<u32, String>>,
}

impl Watch {
    pub fn begin(port: u16) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let scraper = std::thread::spawn(move || {
            let (mut seen, mut pages) = (Seen::default(), 0);
            while !told.load(Ordering::Relaxed) {
                pages += 1;
                let page = Page::fetch(port)?;
                seen.compare(&page).map_err(|error| format!("page {pages}: {error}"))?;
            }
            Ok(pages)
        });
        Self { over, scraper }
    }

    /// How many pages there were, none of them wrong.
    pub fn end(self) -> Result<u32, String> {
        self.over.store(true, Ordering::Relaxed);
        self.scraper.join().map_err(|_| "the scraper panicked")?
    }
}

#[derive(Default)]
struct Seen {
    /// The most that each counter has been.
    most: BTreeMap<String, f64>,
    last: BTreeSet<String>,
}

impl Seen {
    /// No counter falls or goes (but those of processes, which end), nothing but a difference is below
    /// zero, and no MR is taken for a buffer of a queue.
    fn compare(&mut self, page: &Page) -> Result<(), String> {
        let counters = counters(&page.text);
        let mut now = BTreeSet::new();
        for (series, value) in page.starting("") {
            if value < 0.0 && !family(series).ends_with("_difference_bytes") {
                return Err(format!("{series} is {value}"));
            }
            if series.starts_with("mrscope_umem_pinned_bytes{")
                && series.contains("use=\"queue\"")
                && value != 0.0
            {
                return Err(format!("{series} is {value}: MRs were taken for queue buffers"));
            }
            if !counters.contains(family(series)) {
                continue;
            }
            now.insert(series.to_owned());
            let most = self.most.entry(series.to_owned()).or_default();
            if value < *most {
                return Err(format!("{series} fell from {most} to {value}"));
            }
            *most = value;
        }
        let gone = self.last.difference(&now).find(|series| !series.contains("_process_"));
        if let Some(series) = gone {
            return Err(format!("{series} is gone"));
        }
        self.last = now;
        Ok(())
    }
}

fn family(series: &str) -> &str {
    series.split('{').next().unwrap_or(series)
}

/// Names of series that may only rise.
fn counters(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .flat_map(|(name, kind)| match kind {
            "counter" => vec![name.to_owned()],
            "histogram" => ["bucket", "count", "sum"].map(|part| format!("{name}_{part}")).into(),
            _ => Vec::new(),
        })
        .collect()
}
