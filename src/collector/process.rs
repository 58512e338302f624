//! Collector `process`: what the memory of each process costs the host.

use std::time::Duration;

use crate::metrics::{Page, PageError, process};
use crate::model::{Labels, Memory};

use super::{CollectError, Collector, Scene, SourceTimes};

pub struct Process;

impl Collector for Process {
    fn name(&self) -> &'static str {
        "process"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.tasks
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let list = scene.tasks.map_err(Clone::clone)?;
        for shown in &scene.view.shown {
            if let Some(who) = scene.who.of(&shown.labels) {
                page.process_info(&process::INFO, &shown.labels, &who.values())?;
            }
            if let Some(held) = &shown.memory {
                memory(&shown.labels, held, page)?;
            }
            let started = shown.key.and_then(|key| list.start_time_seconds(key.start_ns));
            if let Some(seconds) = started {
                page.process_number(&process::START_TIME_SECONDS, &shown.labels, None, seconds)?;
            }
        }
        if let Some(held) = &scene.view.others.memory {
            memory(scene.others, held, page)?;
        }
        if list.tasks.whole {
            return Ok(());
        }
        if let Some(why) = &list.tasks.unread {
            return Err(CollectError::Failed(format!(
                "not every process could be read, and no end of one can be told meanwhile: {why}"
            )));
        }
        Err(CollectError::Denied(
            "/proc shows a part of the processes only: others have no figures, and the end of a \
             process can't be told; run mrscope in the host's pid namespace (hostPID: true, \
             --pid=host), and where /proc is mounted with hidepid with CAP_SYS_PTRACE"
                .into(),
        ))
    }
}

fn memory(labels: &Labels, held: &Memory, page: &mut Page) -> Result<(), PageError> {
    page.process_number(&process::PINNED_BYTES, labels, None, held.pinned_bytes as f64)?;
    page.process_number(&process::LOCKED_BYTES, labels, None, held.locked_bytes as f64)?;
    if let Some(bytes) = held.hugetlb_bytes {
        page.process_number(&process::HUGETLB_BYTES, labels, None, bytes as f64)?;
    }
    page.process_number(&process::PAGE_TABLE_BYTES, labels, None, held.page_table_bytes as f64)?;
    if let Some(bytes) = held.memlock_limit_bytes {
        let limit = if bytes == Memory::NO_LIMIT { f64::INFINITY } else { bytes as f64 };
        page.process_number(&process::MEMLOCK_LIMIT_BYTES, labels, None, limit)?;
    }
    if let Some(exempt) = held.exempt {
        page.process_number(&process::MEMLOCK_EXEMPT, labels, None, f64::from(exempt))?;
    }
    if let Some(locks) = held.locks_future {
        page.process_number(&process::MLOCKALL_FUTURE, labels, None, f64::from(locks))?;
    }
    Ok(())
}
