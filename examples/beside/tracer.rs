//! bpftrace with one histogram, started and ended so that it sees all that is between.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub struct Tracer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Tracer {
    /// Starts bpftrace. It runs its command when all probes are in place, and that hands back what
    /// it is told: an answer says that they are.
    ///
    /// # Errors
    /// There is no bpftrace, or it ended.
    pub fn start(program: &str) -> Result<Self, String> {
        let mut child = Command::new("bpftrace")
            .args(["-c", "/bin/cat", "-e", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("bpftrace: {error}"))?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut started = Self { child, input, output };
        writeln!(started.input, "attached").map_err(|error| format!("bpftrace: {error}"))?;
        let mut line = String::new();
        while line != "attached\n" {
            line.clear();
            if started.output.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
                return Err("bpftrace ended before its probes were in place".to_owned());
            }
        }
        Ok(started)
    }

    /// Ends it with its command; what its histogram counted in all.
    ///
    /// # Errors
    /// It could not be waited for.
    pub fn end(mut self) -> Result<f64, String> {
        drop(self.input);
        let lines = self.output.lines().map_while(Result::ok);
        let counted = lines.filter_map(|line| {
            let (slot, _) = line.split_once('|')?;
            slot.split_whitespace().last()?.parse::<f64>().ok()
        });
        let counted = counted.sum();
        self.child.wait().map_err(|error| format!("bpftrace: {error}"))?;
        Ok(counted)
    }
}
