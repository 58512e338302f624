//! A source on a thread of its own: it reads when it is asked and publishes an immutable result.
//! Who asks waits until a deadline and no longer; a source that hangs costs one such wait, and
//! is not waited for again until it has answered.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::host::Rights;

use super::CollectError;

/// A result with its time.
#[derive(Debug)]
pub struct Published<T> {
    pub value: Result<T, CollectError>,
    /// When its reading began.
    pub begun: Instant,
    pub took: Duration,
}

impl<T> Published<T> {
    /// Whether its whole reading was after one moment and before another.
    #[must_use]
    pub fn lies_between(&self, after: Instant, before: Instant) -> bool {
        self.begun > after && self.begun + self.took <= before
    }
}

/// The asker's end. The thread ends when this is dropped and its reading is over.
pub struct Source<A, T> {
    name: &'static str,
    /// None ends the thread.
    asks: Option<Sender<Option<A>>>,
    board: Arc<Board<T>>,
    thread: Option<JoinHandle<()>>,
    asked: u64,
    /// A wait for the last ask was in vain.
    overdue: bool,
}

struct Board<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    answered: u64,
    latest: Option<Arc<Published<T>>>,
    ended: bool,
}

impl<T> Board<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // A reader that panicked left the state whole: it is changed by single assignments.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread is over, however it ended.
struct End<T>(Arc<Board<T>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl<A: Send + 'static, T: Send + Sync + 'static> Source<A, T> {
    /// Starts the thread, which gives up all rights but these. `open` runs on it and gives the
    /// reader, which answers an ask, or does what it is told (None).
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start<R>(
        name: &'static str,
        rights: Rights,
        open: impl FnOnce() -> R + Send + 'static,
    ) -> std::io::Result<Self>
    where
        R: FnMut(A) -> Option<Result<T, CollectError>>,
    {
        let (asks, inbox) = channel::<Option<A>>();
        let state = State { answered: 0, latest: None, ended: false };
        let board = Arc::new(Board { state: Mutex::new(state), changed: Condvar::new() });
        let end = End(Arc::clone(&board));
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let board = &end.0;
            if let Err(error) = rights.keep() {
                tracing::error!("the thread {name} keeps its capabilities: {error}");
            }
            let mut read = open();
            for ask in inbox.iter().map_while(|ask| ask) {
                let begun = Instant::now();
                let Some(value) = read(ask) else { continue };
                let published = Arc::new(Published { value, begun, took: begun.elapsed() });
                let mut state = board.lock();
                state.latest = Some(published);
                state.answered += 1;
                drop(state);
                board.changed.notify_all();
            }
        })?;
        Ok(Self { name, asks: Some(asks), board, thread: Some(thread), asked: 0, overdue: false })
    }

    /// Asks for a reading, unless the last ask is not answered yet.
    pub fn ask(&mut self, ask: A) {
        let answered = self.board.lock().answered;
        if answered == self.asked {
            self.overdue = false;
            self.asked += 1;
            self.tell(ask);
        }
    }

    /// Sends what is not answered.
    pub fn tell(&self, ask: A) {
        if let Some(asks) = &self.asks {
            // A thread that has ended is said by `latest`.
            let _ = asks.send(Some(ask));
        }
    }

    /// A way to tell it what is not answered, for another thread.
    #[must_use]
    pub fn teller(&self) -> Option<Teller<A>> {
        self.asks.clone().map(Teller)
    }

    /// Waits for the answer, until `deadline`.
    pub fn wait(&mut self, deadline: Instant) {
        if self.overdue {
            return;
        }
        let mut state = self.board.lock();
        while state.answered < self.asked && !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.overdue = true;
                return;
            }
            let waited = self.board.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The latest result, if it is not older than `max_age`.
    ///
    /// # Errors
    /// There is none, it is too old, or the thread has ended.
    pub fn latest(&self, max_age: Duration) -> Result<Arc<Published<T>>, CollectError> {
        let state = self.board.lock();
        if state.ended {
            return Err(CollectError::Failed(format!(
                "the thread {} has ended; restart mrscope and report its log",
                self.name
            )));
        }
        match &state.latest {
            Some(published) if published.begun.elapsed() <= max_age + published.took => {
                Ok(Arc::clone(published))
            }
            Some(_) => Err(CollectError::Stale(format!(
                "reading {} hangs; nothing newer than {} s is known (a driver may be stuck: see \
                 dmesg)",
                self.name,
                max_age.as_secs()
            ))),
            None => Err(CollectError::Stale(format!(
                "reading {} has not come to an end yet (a driver may be stuck: see dmesg)",
                self.name
            ))),
        }
    }
}

/// See [`Source::teller`].
pub struct Teller<A>(Sender<Option<A>>);

impl<A> Teller<A> {
    /// False if the source has ended.
    pub fn tell(&self, ask: A) -> bool {
        self.0.send(Some(ask)).is_ok()
    }
}

impl<A, T> Source<A, T> {
    /// Ends the thread and waits for that: what it holds is given back.
    ///
    /// # Errors
    /// It had panicked.
    pub fn join(mut self) -> std::thread::Result<()> {
        if let Some(asks) = self.asks.take() {
            // Whoever else has a way to tell it something, it ends.
            let _ = asks.send(None);
        }
        self.thread.take().map_or(Ok(()), JoinHandle::join)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// Answers each ask with the next value that the test gives it.
    fn fed(values: Receiver<u32>) -> Source<(), u32> {
        Source::start("test", Rights::NONE, move || move |()| values.recv().ok().map(Ok)).unwrap()
    }

    fn value(source: &Source<(), u32>, max_age: Duration) -> Result<u32, CollectError> {
        source.latest(max_age).map(|published| published.value.clone().unwrap())
    }

    #[test]
    fn a_reading_that_was_not_over_lies_not_between() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let reading = |begun, took| Published {
            value: Ok(()),
            begun: at(begun),
            took: Duration::from_millis(took),
        };
        assert!(reading(10, 5).lies_between(at(9), at(15)));
        // Rows were read while the list was still being walked.
        assert!(!reading(10, 5).lies_between(at(9), at(14)));
        assert!(!reading(10, 5).lies_between(at(10), at(15)));
    }

    #[test]
    fn an_answer_that_is_there_in_time_is_the_latest() {
        let (feed, values) = sync_channel(1);
        let mut source = fed(values);
        feed.send(7).unwrap();
        source.ask(());
        source.wait(Instant::now() + LONG);
        assert_eq!(value(&source, LONG), Ok(7));
    }

    #[test]
    fn one_that_hangs_is_waited_for_once_and_its_last_result_serves_until_it_is_too_old() {
        let (feed, values) = sync_channel(1);
        let mut source = fed(values);
        feed.send(1).unwrap();
        source.ask(());
        source.wait(Instant::now() + LONG);
        source.ask(());
        source.wait(Instant::now());
        assert!(source.overdue);
        // A hang: this returns at once, or the test does not end in time.
        source.ask(());
        source.wait(Instant::now() + Duration::from_hours(1));
        assert_eq!(value(&source, LONG), Ok(1));
        assert!(matches!(value(&source, Duration::ZERO), Err(CollectError::Stale(_))));

        // It wakes up: the next ask is waited for again.
        feed.send(2).unwrap();
        while source.board.lock().answered < source.asked {
            std::thread::yield_now();
        }
        assert_eq!(value(&source, LONG), Ok(2));
        feed.send(3).unwrap();
        source.ask(());
        source.wait(Instant::now() + LONG);
        assert_eq!(value(&source, LONG), Ok(3));
    }

    #[test]
    fn one_that_never_answered_is_stale_and_one_that_panicked_has_failed() {
        let (feed, values) = sync_channel::<u32>(1);
        let mut source = fed(values);
        source.ask(());
        source.wait(Instant::now());
        assert!(matches!(value(&source, LONG), Err(CollectError::Stale(_))));
        drop(feed);

        let mut source =
            Source::<(), u32>::start("test", Rights::NONE, || |()| panic!("on purpose")).unwrap();
        source.ask(());
        source.wait(Instant::now() + LONG);
        assert!(matches!(value(&source, LONG), Err(CollectError::Failed(_))));
        assert!(source.join().is_err());
    }
}
