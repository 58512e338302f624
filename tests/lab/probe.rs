//! mrscope-write-probe, and its answer taken apart without mrscope's own code.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;

pub const PROGRAM: &str = "target/release/mrscope-write-probe";

/// What it registers unless it is told otherwise.
pub const MR_BYTES: f64 = 4.0 * 1024.0 * 1024.0;

/// A running probe, ended with its case.
pub struct Probe {
    child: Child,
    pub pid: u32,
}

/// One that has ended.
#[derive(Debug)]
pub struct Ended {
    status: ExitStatus,
    output: String,
    errors: String,
}

impl Probe {
    /// Starts it with the words of a line.
    pub fn begin(line: &str) -> Result<Self, String> {
        Self::begin_by(&[], PROGRAM, line)
    }

    /// The same, by programs that become it.
    pub fn begin_by(starter: &[&str], program: &str, line: &str) -> Result<Self, String> {
        let words: Vec<&str> =
            starter.iter().copied().chain([program]).chain(line.split_whitespace()).collect();
        let child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        let pid = child.id();
        Ok(Self { child, pid })
    }

    /// Runs it to its end.
    pub fn run(line: &str) -> Result<Ended, String> {
        Self::begin(line)?.wait()
    }

    /// What it says is less than a pipe holds.
    pub fn wait(mut self) -> Result<Ended, String> {
        let status = self.child.wait().map_err(|error| error.to_string())?;
        let text = |from: Option<&mut dyn Read>| -> Result<String, String> {
            let mut text = String::new();
            from.ok_or("no pipe")?.read_to_string(&mut text).map_err(|e| e.to_string())?;
            Ok(text)
        };
        let output = text(self.child.stdout.as_mut().map(|pipe| pipe as &mut dyn Read))?;
        let errors = text(self.child.stderr.as_mut().map(|pipe| pipe as &mut dyn Read))?;
        Ok(Ended { status, output, errors })
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> Result<bool, String> {
        self.child.try_wait().map(|status| status.is_some()).map_err(|error| error.to_string())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // A case that failed leaves none behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Its report.
    pub fn report(&self) -> Result<Value, String> {
        self.answer(0, "ok")
    }

    /// A failure of that reason, in whatever call.
    pub fn fails_by(&self, reason: &str) -> Result<Value, String> {
        let answer = self.answer(1, "error")?;
        if answer["reason"] == reason { Ok(answer) } else { Err(format!("{reason}? {answer}")) }
    }

    /// A failure of that reason, in that call.
    pub fn fails_as(&self, reason: &str, verb: &str) -> Result<Value, String> {
        let answer = self.fails_by(reason)?;
        if answer["verb"] == verb { Ok(answer) } else { Err(format!("{verb}? {answer}")) }
    }

    /// It ended by that signal, and said nothing.
    pub fn by_signal(&self, number: i32) -> Result<(), String> {
        if self.status.signal() == Some(number) && self.output.is_empty() {
            return Ok(());
        }
        Err(format!("expected an end by signal {number}: {self:?}"))
    }

    /// That status, without an answer; what it said to its user.
    pub fn refused(&self, code: i32) -> Result<&str, String> {
        if self.status.code() == Some(code) && self.output.is_empty() {
            return Ok(&self.errors);
        }
        Err(format!("expected status {code} and no answer: {self:?}"))
    }

    fn answer(&self, code: i32, result: &str) -> Result<Value, String> {
        if self.status.code() != Some(code) || self.output.lines().count() != 1 {
            return Err(format!("expected one line and status {code}: {self:?}"));
        }
        let answer: Value = serde_json::from_str(&self.output)
            .map_err(|error| format!("{error}: {}", self.output))?;
        if answer["result"] == result { Ok(answer) } else { Err(format!("{answer}")) }
    }
}
