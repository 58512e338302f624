//! The source of placement: reads all live pins on a thread of its own, at its own pace, and adds up
//! how much of their memory is distinct and where it lies. No page waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::host::{self, Rights};
use crate::ledger::distinct::Distinct;
use crate::ledger::layout::{Known, Layout};
use crate::model::{Found, PlacementOptions};
use crate::nldev::pace::{PERCENT, Pace};

use super::CollectError;
use super::accounts::{MOST_PINS, Watching};
use super::source::{Source, Teller};
use super::sources::{EventsAsk, live_pins};

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
pub fn places(options: PlacementOptions, pins: Teller<EventsAsk>) -> std::io::Result<PlacesSource> {
    Source::start("placement", Rights::NONE, move || {
        let begun = Instant::now();
        let mut reader = Reader {
            pins,
            pace: Pace::new(options.interval, PERCENT),
            since_ns: None,
            last: Err(CollectError::NoData("no registrations are watched".to_owned())),
        };
        move |ask: PlacesAsk| Some(reader.read(&ask, &|| begun.elapsed()))
    })
}

struct Reader {
    pins: Teller<EventsAsk>,
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

    fn look(&self, ask: &PlacesAsk) -> Result<Places, CollectError> {
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
        Ok(Places {
            at: since.unwrap_or_default().as_secs_f64(),
            distinct: Distinct::of(&pins, &ask.found, host::page_bytes()),
            layout: Some(Layout::of(&pins, &Known::new(), &ask.found)),
            trouble: None,
        })
    }
}
