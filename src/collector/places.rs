//! The source of placement: reads all live pins on a thread of its own, at its own pace, and adds up
//! how much of their memory is distinct and where it lies. No page waits for it.

mod sampling;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::host::{self, Host, Lack, Rights, Sampler};
use crate::ledger::distinct::Distinct;
use crate::ledger::layout::{Known, Layout, Method};
use crate::model::{Found, Pin, PlacementOptions};
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

/// Starts the thread. `pins` is the way to who reads the kernel's maps.
///
/// # Errors
/// The system refuses a thread.
pub fn places(
    host: Host,
    options: PlacementOptions,
    pins: Teller<EventsAsk>,
) -> std::io::Result<PlacesSource> {
    let rights = if options.pages { Rights::SAMPLING } else { Rights::NONE };
    Source::start("placement", rights, move || {
        let begun = Instant::now();
        let pages = if options.pages { Pages::Asked(host) } else { Pages::Off };
        let mut reader = Reader {
            pins,
            pages,
            pace: Pace::new(options.interval, PERCENT),
            since_ns: None,
            last: Err(CollectError::NoData("no registrations are watched".to_owned())),
        };
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
}

impl Reader {
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
        let Some(watched) = &ask.watched else {
            return Err(CollectError::NoData("no registrations are watched".to_owned()));
        };
        if watched.live_pins > MOST_PINS {
            return Err(CollectError::Unsupported(format!(
                "over {MOST_PINS} pins live: how much of their memory is distinct is not added up"
            )));
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let pins = live_pins(&self.pins)?;
        let layout = self.known(&pins)?;
        Ok(Places {
            at: since.unwrap_or_default().as_secs_f64(),
            distinct: Distinct::of(&pins, &ask.found, host::page_bytes()),
            layout: layout.map(|known| Layout::of(&pins, &known, &ask.found)),
            trouble: self.trouble(),
        })
    }

    /// Where these lie, as far as that can be known. None where nobody looks.
    fn known(&mut self, pins: &[Pin]) -> Result<Option<Known>, CollectError> {
        if matches!(self.pages, Pages::Off) {
            return Ok(None);
        }
        let walked = placements(&self.pins)?;
        if let Pages::Asked(host) = &self.pages {
            self.pages = if walked.is_some() {
                give_up_rights();
                Pages::Walked
            } else {
                let rights = Rights::SAMPLING.keep().and_then(|all| all.for_sampling().keep());
                Pages::Sampled(Sampling::new(Sampler::new(host, rights.unwrap_or(Rights::NONE))))
            };
        }
        let walked = walked.unwrap_or_default();
        let mut known: Known =
            walked.into_iter().map(|(umem, placed)| (umem, (placed, Method::Walked))).collect();
        if let Pages::Sampled(sampling) = &mut self.pages {
            sampling.add_to(&mut known, pins);
        }
        Ok(Some(known))
    }

    fn trouble(&self) -> Option<CollectError> {
        let Pages::Sampled(sampling) = &self.pages else { return None };
        let lacks = sampling.lacks();
        if lacks.is_empty() {
            return None;
        }
        let all: Vec<_> = lacks.iter().map(Lack::to_string).collect();
        let why = format!("where registered memory lies is not known whole: {}", all.join("; "));
        let denied = lacks.iter().any(|lack| matches!(lack, Lack::Rights { .. }));
        Some(if denied { CollectError::Denied(why) } else { CollectError::Unsupported(why) })
    }
}

fn give_up_rights() {
    if let Err(error) = Rights::NONE.keep() {
        tracing::error!("the thread placement keeps its capabilities: {error}");
    }
}
