//! A registration that takes long is in flight, and its age is told.

use crate::cases::*;
use crate::exporter::Exporter;
use crate::workload::{Workload, kernel_mrs, number, vm_pin};

pub const CASES: &[OnceCase] = &[(
    "a_registration_that_is_held_up_is_in_flight_and_ages",
    a_registration_that_is_held_up_is_in_flight_and_ages,
)];

const IN_FLIGHT: &str = "mrscope_mr_registrations_inflight{device=\"rxe0\"}";
const OLDEST: &str = "mrscope_mr_registration_inflight_oldest_seconds{device=\"rxe0\"}";

/// The age on a page is between what the caller knows before and after it.
fn age(exporter: &Exporter, workload: &mut Workload) -> Result<f64, String> {
    let least = number(&workload.ask("stalled")?, "least_ns")? * 1e-9;
    let page = exporter.page()?;
    let most = number(&workload.ask("stalled")?, "most_ns")? * 1e-9;
    equal("in flight", page.or_zero(IN_FLIGHT), 1.0)?;
    equal("registrations", page.or_zero(REGISTRATIONS), 0.0)?;
    equal("held", page.or_zero(ACTIVE), 0.0)?;
    let age = page.or_zero(OLDEST);
    if least <= age && age <= most {
        Ok(age)
    } else {
        Err(format!("mrscope says {age} s, the caller {least} s to {most} s"))
    }
}

fn a_registration_that_is_held_up_is_in_flight_and_ages() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    equal("at first", exporter.page()?.or_zero(IN_FLIGHT), 0.0)?;
    workload.ask("stall size=64K")?;
    let first = age(&exporter, &mut workload)?;
    let second = age(&exporter, &mut workload)?;
    if second <= first {
        return Err(format!("its age was {first} s, and then {second} s"));
    }
    let reply = workload.ask("resume")?;
    let page = exporter.page()?;
    equal("in flight after", page.or_zero(IN_FLIGHT), 0.0)?;
    equal("age after", page.or_zero(OLDEST), 0.0)?;
    equal("registrations", page.or_zero(REGISTRATIONS), 1.0)?;
    equal("active", page.or_zero(ACTIVE), kernel_mrs()?.0)?;
    equal("active bytes", page.or_zero(ACTIVE_BYTES), 65536.0)?;
    equal("pinned", page.or_zero(PINNED_MR), vm_pin(workload.pid)?)?;
    let seconds = page.or_zero(REGISTRATION_SECONDS);
    let caller = number(&reply, "reg_ns_sum")? * 1e-9;
    if !(second <= seconds && seconds <= caller) {
        return Err(format!(
            "it took {seconds} s, was {second} s old, and {caller} s by the caller"
        ));
    }
    workload.kill()?;
    exporter.stop().map(|_| ())
}
