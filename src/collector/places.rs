//! The source of placement: reads all live pins on a thread of its own, at its own pace, and adds up
//! how much of their memory is distinct and where it lies. No page waits for what comes of it.

mod sampling;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::host::{self, Host, Rights, Sampler};
use crate::ledger::distinct::{Distinct, Room};
use crate::ledger::layout::{Known, Layout, Method};
use crate::model::{Found, Pin, Placed, PlacementOptions};
use crate::nldev::pace::{PERCENT, Pace};

use super::CollectError;
use super::accounts::{MOST_PINS, Watching};
use super::source::{Source, Teller};
use super::sources::{EventsAsk, live_pins, placements};
use sampling::Sampling;

/// What the thread is told with each ask.
#[derive(Debug, Clone, Default)]
pub struct PlacesAsk {
    /// None while registrations are not watched.
    pub watched: Option<Watching>,
    /// MRs from before then.
    pub found: Vec<Found>,
    /// How much of those their processes can have pinned.
    pub room: Room,
}

/// All live pins, as they were read last.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Places {
    /// When that was, in seconds since the epoch.
    pub at: f64,
    pub distinct: Distinct,
    /// None where nothing looks at the pages of MRs.
    pub layout: Option<Layout>,
    /// Why a part of it is missing.
    pub trouble: Option<CollectError>,
}

pub type PlacesSource = Source<PlacesAsk, Arc<Places>>;

/// Starts the thread, which keeps of `rights` what looking at pages takes, as long as nobody else
/// looks. `pins` is the way to who reads the kernel's maps.
///
/// # Errors
/// The system refuses a thread.
pub fn places(
    host: Host,
    options: PlacementOptions,
    rights: Rights,
    pins: Teller<EventsAsk>,
) -> std::io::Result<PlacesSource> {
    let rights = if options.pages { rights } else { Rights::NONE };
    Source::start("placement", rights, move || {
        let begun = Instant::now();
        let pages = if options.pages { Pages::Asked(host) } else { Pages::Off };
        let mut reader = Reader::new(pins, pages, options.interval);
        move |ask: PlacesAsk| Some(reader.read(&ask, &|| begun.elapsed()))
    })
}

/// Who looks at the pages of MRs.
enum Pages {
    Off,
    /// Not known yet.
    Asked(Host),
    /// The kernel's programs, as MRs are made.
    Walked,
    /// This thread, afterwards.
    Sampled(Sampling),
}

struct Reader {
    pins: Teller<EventsAsk>,
    pages: Pages,
    pace: Pace,
    /// Since when registrations were watched at the last reading.
    since_ns: Option<u64>,
    last: Result<Arc<Places>, CollectError>,
    /// The kernel's programs looked at pages, and can't any more.
    blind: bool,
}

impl Reader {
    fn new(pins: Teller<EventsAsk>, pages: Pages, interval: Duration) -> Self {
        let last = Err(CollectError::NoData("no registrations are watched".to_owned()));
        Self { pins, pages, pace: Pace::new(interval, PERCENT), since_ns: None, last, blind: false }
    }

    fn read(
        &mut self,
        ask: &PlacesAsk,
        clock: &dyn Fn() -> Duration,
    ) -> Result<Arc<Places>, CollectError> {
        let since_ns = ask.watched.as_ref().map(|watched| watched.since_ns);
        let begun = clock();
        if self.since_ns != since_ns || self.pace.is_due(begun) {
            self.since_ns = since_ns;
            self.last = self.look(ask).map(Arc::new);
            self.pace.spent(begun, clock());
        }
        self.last.clone()
    }

    fn look(&mut self, ask: &PlacesAsk) -> Result<Places, CollectError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let pins = self.read_pins(ask.watched.as_ref());
        // After them: each of those that live was looked at before its call succeeded.
        let walked = self.walked();
        let pins = pins?;
        let known = walked?.map(|walked| self.with_samples(walked, &pins));
        let layout = known.map(|known| Layout::of(&pins, &known, &ask.found));
        Ok(Places {
            at: since.unwrap_or_default().as_secs_f64(),
            distinct: Distinct::of(&pins, &ask.found, &ask.room, host::page_bytes()),
            trouble: layout.as_ref().and_then(|layout| self.trouble(layout)),
            layout,
        })
    }

    fn read_pins(&self, watched: Option<&Watching>) -> Result<Vec<Pin>, CollectError> {
        let Some(watched) = watched else {
            return Err(CollectError::NoData("no registrations are watched".to_owned()));
        };
        if watched.live_pins > MOST_PINS {
            return Err(CollectError::Failed(format!(
                "over {MOST_PINS} pins live: how much of their memory is distinct is not added up"
            )));
        }
        live_pins(&self.pins)
    }

    /// Where MRs lie, as far as the kernel's programs looked; None where nobody is to look. Gives up
    /// what nobody needs any more.
    fn walked(&mut self) -> Result<Option<HashMap<u64, Placed>>, CollectError> {
        if matches!(self.pages, Pages::Off) {
            return Ok(None);
        }
        let walked = placements(&self.pins);
        let next = match (&walked, &self.pages) {
            (Ok(Some(_)), Pages::Asked(_) | Pages::Sampled(_)) => Some(Pages::Walked),
            // Nothing is ever watched.
            (Err(CollectError::Denied(_) | CollectError::Unsupported(_)), _) => Some(Pages::Off),
            (Ok(None), Pages::Asked(host)) => {
                let rights = Rights::SAMPLING.keep().and_then(|all| all.for_sampling().keep());
                let sampler = Sampler::new(host, rights.unwrap_or(Rights::NONE));
                Some(Pages::Sampled(Sampling::new(sampler)))
            }
            _ => None,
        };
        if let Some(next) = next {
            if matches!(next, Pages::Walked | Pages::Off)
                && let Err(error) = Rights::NONE.keep()
            {
                tracing::error!("the thread placement keeps its capabilities: {error}");
            }
            self.pages = next;
        }
        if walked.is_ok() {
            self.blind = matches!((&walked, &self.pages), (Ok(None), Pages::Walked));
        }
        walked.map(|walked| Some(walked.unwrap_or_default()))
    }

    /// The same, with what this thread knows of the others.
    fn with_samples(&mut self, walked: HashMap<u64, Placed>, pins: &[Pin]) -> Known {
        let mut known = Known { walked, sampled: HashMap::new() };
        if let Pages::Sampled(sampling) = &mut self.pages {
            sampling.add_to(&mut known, pins);
        }
        known
    }

    fn trouble(&self, layout: &Layout) -> Option<CollectError> {
        let lacks = match &self.pages {
            Pages::Sampled(sampling) => sampling.lacks(),
            _ if self.blind && layout.by_method[Method::Unknown as usize] > 0 => {
                vec![
                    "the RDMA modules came again without types, so that their pages can't be found: \
                     restart mrscope, which then samples"
                        .to_owned(),
                ]
            }
            _ => Vec::new(),
        };
        (!lacks.is_empty()).then(|| {
            CollectError::Unsupported(format!(
                "where registered memory lies is not known whole: {}",
                lacks.join("; ")
            ))
        })
    }
}
