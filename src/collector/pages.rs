//! The askers' side of the engine: who asks for a page shares it with all who ask meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use crate::metrics::EncodeError;
use crate::model::COLLECTORS;

use super::status::Status;

/// A page's text, shared by all who asked for it.
pub type Rendered = Result<Bytes, RenderError>;

/// Why there is no page.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RenderError {
    #[error("{0}")]
    Encode(#[from] Arc<EncodeError>),
    #[error("the thread that makes the pages has ended")]
    Ended,
}

/// The collectors that a page is to have.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Choice(Vec<&'static str>);

/// A collector that can't be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    #[error("unknown collector {0:?}, expected one of {on}", on = .1.join(", "))]
    Unknown(String, Vec<&'static str>),
    #[error("the collector {0} is switched off, expected one of {on}", on = .1.join(", "))]
    Off(&'static str, Vec<&'static str>),
}

impl Choice {
    /// These collectors, which are on.
    pub(super) fn of(on: Vec<&'static str>) -> Self {
        Self(on)
    }

    #[must_use]
    pub fn has(&self, collector: &str) -> bool {
        self.0.contains(&collector)
    }
}

/// What is asked of the engine.
pub(super) struct Request {
    pub choice: Choice,
    pub reply: oneshot::Sender<Rendered>,
}

/// Hands out pages. Cheap to clone; the thread behind it ends when the last is dropped.
#[derive(Debug, Clone)]
pub struct Pages {
    pub(super) requests: Sender<Request>,
    pub(super) ready: Arc<AtomicBool>,
    /// The collectors that are on.
    pub(super) on: Vec<&'static str>,
    /// What was read last, in words.
    pub(super) status: watch::Receiver<Option<Arc<Status>>>,
    /// Its receiver lives on the thread.
    pub(super) alive: watch::Sender<()>,
}

impl Pages {
    /// Collectors by their words; all that are on if none is named.
    ///
    /// # Errors
    /// One is unknown, or off.
    pub fn choose(&self, named: &[impl AsRef<str>]) -> Result<Choice, ChoiceError> {
        if named.is_empty() {
            return Ok(Choice(self.on.clone()));
        }
        for name in named {
            match COLLECTORS.iter().find(|known| **known == name.as_ref()) {
                None => {
                    let name = name.as_ref().to_owned();
                    return Err(ChoiceError::Unknown(name, self.on.clone()));
                }
                Some(known) if !self.on.contains(known) => {
                    return Err(ChoiceError::Off(known, self.on.clone()));
                }
                Some(_) => {}
            }
        }
        let chosen = |on: &&&str| named.iter().any(|name| name.as_ref() == **on);
        Ok(Choice(self.on.iter().filter(chosen).copied().collect()))
    }

    /// A page that is begun after this call, shared with all who wait for the same meanwhile.
    ///
    /// # Errors
    /// See [`RenderError`].
    pub async fn get(&self, choice: Choice) -> Rendered {
        let (reply, page) = oneshot::channel();
        self.requests.send(Request { choice, reply }).map_err(|_| RenderError::Ended)?;
        page.await.map_err(|_| RenderError::Ended)?
    }

    /// What was read last, in words; None before the first reading. It asks nobody.
    #[must_use]
    pub fn status(&self) -> Option<Arc<Status>> {
        self.status.borrow().clone()
    }

    /// Completes when the thread behind the pages has ended.
    pub async fn ended(&self) {
        self.alive.closed().await;
    }

    /// Whether everything is attached that can be.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }
}
