//! Processes that share a label are one series.

use std::fs;

use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::workload::{Workload, status_bytes};

/// A cgroup for its lifetime.
pub struct Cgroup(pub &'static str);

impl Cgroup {
    pub fn make(name: &'static str) -> Result<Self, String> {
        fs::create_dir(format!("/sys/fs/cgroup/{name}")).map_err(|e| format!("{name}: {e}"))?;
        Ok(Self(name))
    }

    fn series(&self, metric: &str) -> String {
        format!("mrscope_process_{metric}{{cgroup=\"/{}\"}}", self.0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(format!("/sys/fs/cgroup/{}", self.0));
    }
}

const REGISTERED: &str = "mr_registration_duration_seconds_count";

pub fn members_of_a_cgroup_are_one_series_that_keeps_the_dead_s_events() -> Outcome {
    let (a, b, c) = (Cgroup::make("lab_a")?, Cgroup::make("lab_b")?, Cgroup::make("lab_c")?);
    let exporter = Exporter::start(&["--process.labels", "cgroup"])?;
    let mut one = Workload::start_in(a.0)?;
    let mut two = Workload::start_in(a.0)?;
    let mut three = Workload::start_in(b.0)?;
    one.ask("reg count=3 size=4096")?;
    two.ask("reg count=4 size=8192")?;
    three.ask("reg count=2 size=65536")?;
    // It registers by a child, which has ended when the page is made.
    let mut parent = Workload::start_in(c.0)?;
    parent.ask("lives count=1 size=4096")?;
    parent.end()?;
    let page = exporter.page()?;
    equal("held in a", page.or_zero(&a.series("mr_active")), 7.0)?;
    equal("bytes in a", page.or_zero(&a.series("mr_active_bytes")), 45_056.0)?;
    equal("largest in a", page.or_zero(&a.series("mr_largest_bytes")), 8192.0)?;
    equal("registered in a", page.or_zero(&a.series(REGISTERED)), 7.0)?;
    let pinned = |pid: u32| status_bytes(&pid.to_string(), "VmPin");
    let both = pinned(one.pid)? + pinned(two.pid)?;
    equal("pinned in a", page.or_zero(&a.series("pinned_bytes")), both)?;
    equal("held in b", page.or_zero(&b.series("mr_active")), 2.0)?;
    equal("registered in b", page.or_zero(&b.series(REGISTERED)), 2.0)?;
    equal("registered in c", page.or_zero(&c.series(REGISTERED)), 1.0)?;

    one.end()?;
    wait_for("its pages to go", || {
        let page = exporter.page()?;
        Ok(page.value(&a.series("pinned_bytes")) == Some(pinned(two.pid)?))
    })?;
    let page = exporter.page()?;
    equal("held by who is left", page.or_zero(&a.series("mr_active")), 4.0)?;
    equal("registered by both", page.or_zero(&a.series(REGISTERED)), 7.0)?;
    two.ask("reg count=1 size=4096")?;
    equal("and on", exporter.page()?.or_zero(&a.series(REGISTERED)), 8.0)?;
    two.end()?;
    three.end()?;
    exporter.stop().map(|_| ())
}
