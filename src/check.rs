//! What `mrscope check` prints: how each collector and each program stands, and what helps. Owns
//! the words and the verdict; looks at nothing itself.

use std::fmt::Write;

use crate::collector::{CollectError, Look, Report};
use crate::model::{HookState, Trouble};

/// So many that are not there are named in the last line; the table has all.
const NAMED: usize = 6;

/// What a look comes to.
#[derive(Debug)]
pub struct Verdict {
    pub text: String,
    /// Whether all that was asked for is there.
    pub complete: bool,
}

/// Judges a look. No program is missing where this kernel does not have the function, where a probe
/// waits for its module, or where the same is had in another way; a collector that is not ok is.
#[must_use]
pub fn judge(look: &Look) -> Verdict {
    let mut reasons = Reasons::default();
    let mut rows = vec![["COLLECTOR", "STATE", "", ""].map(str::to_owned)];
    for Report { collector, outcome, .. } in &look.reports {
        let state = outcome.as_ref().err().map_or("ok", CollectError::state);
        let mark = reasons.mark(outcome.as_ref().err());
        rows.push([collector, state, "", &mark].map(str::to_owned));
    }
    for collector in &look.off {
        rows.push([collector, "off", "", ""].map(str::to_owned));
    }
    rows.push([""; 4].map(str::to_owned));
    rows.push(["PROGRAM", "ATTACHED", "FUNCTION", ""].map(str::to_owned));
    for HookState { hook, symbol, attach, trouble } in &look.hooks {
        let mark = reasons.mark(trouble.as_ref());
        rows.push([hook, attach.label(), symbol, &mark].map(str::to_owned));
    }

    let missing = missing(look);
    let mut text = columns(&rows) + &reasons.list();
    let complete = missing.is_empty();
    if complete {
        text.push_str("\nAll that is asked for is there.\n");
    } else {
        let more = missing.len().saturating_sub(NAMED);
        let named = missing[..missing.len() - more].join(", ");
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let _ = writeln!(text, "\nNot there: {named}{more}.");
    }
    Verdict { text, complete }
}

/// Reasons, each told once below the table.
#[derive(Default)]
struct Reasons(Vec<String>);

impl Reasons {
    /// The mark of a reason, nothing where there is none.
    fn mark(&mut self, reason: Option<&impl ToString>) -> String {
        let Some(reason) = reason.map(ToString::to_string) else {
            return String::new();
        };
        let at = self.0.iter().position(|known| *known == reason).unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        format!("({})", at + 1)
    }

    fn list(&self) -> String {
        let mut text = String::new();
        for (at, reason) in self.0.iter().enumerate() {
            let _ = write!(text, "\n({}) {reason}", at + 1);
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text
    }
}

/// Collectors that are not ok, and programs that the host refuses.
fn missing(look: &Look) -> Vec<String> {
    let failed = look.reports.iter().filter_map(|report| {
        let state = report.outcome.as_ref().err()?.state();
        Some(format!("collector {} ({state})", report.collector))
    });
    let refused = look.hooks.iter().filter_map(|hook| match hook.trouble {
        None | Some(Trouble::NoFunction | Trouble::Replaced(_)) => None,
        Some(_) => Some(format!("program {}", hook.hook)),
    });
    failed.chain(refused).collect()
}

/// Each column as wide as its widest word; the last is free.
fn columns(rows: &[[String; 4]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let [first, second, third] = [0, 1, 2].map(width);
    let mut text = String::new();
    for [one, two, three, mark] in rows {
        let line = format!("{one:first$}  {two:second$}  {three:third$}  {mark}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::Attach;

    fn look(outcome: Result<(), CollectError>, trouble: Option<Trouble>) -> Look {
        let attach = if trouble.is_some() { Attach::None } else { Attach::Pending };
        Look {
            reports: vec![Report { collector: "mr", outcome, took: Duration::ZERO }],
            hooks: vec![HookState { hook: "umem_get", symbol: "ib_umem_get", attach, trouble }],
            off: vec!["devices"],
        }
    }

    #[test]
    fn what_can_t_be_or_waits_is_not_missing() {
        let replaced = Trouble::Replaced("/proc is read instead".into());
        for trouble in [None, Some(Trouble::NoFunction), Some(replaced)] {
            let verdict = judge(&look(Ok(()), trouble));
            assert!(verdict.complete, "{}", verdict.text);
        }
    }

    #[test]
    fn what_is_refused_is_missing_and_its_remedy_is_shown() {
        let denied = Trouble::Denied("EPERM; lacking: CAP_BPF".to_owned());
        let verdict = judge(&look(Ok(()), Some(denied)));
        assert!(!verdict.complete);
        assert!(verdict.text.contains("lacking: CAP_BPF"), "{}", verdict.text);
        assert!(verdict.text.ends_with("Not there: program umem_get.\n"), "{}", verdict.text);

        let verdict = judge(&look(Err(CollectError::NoData("no modules".into())), None));
        assert!(!verdict.complete);
        let expected = "COLLECTOR  STATE\n\
                        mr         no_data                (1)\n\
                        devices    off\n\
                        \n\
                        PROGRAM    ATTACHED  FUNCTION\n\
                        umem_get   pending   ib_umem_get\n\
                        \n\
                        (1) no modules\n\
                        \n\
                        Not there: collector mr (no_data).\n";
        assert_eq!(verdict.text, expected);
    }
}
