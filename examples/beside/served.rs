//! An exporter that is a child of this process: its pages, and the CPU time that they take.
// Each measurement uses its part of it.
#![allow(dead_code)]

use std::error::Error;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

pub struct Served {
    child: Child,
    port: u16,
    /// Kept between pages, as Prometheus does, while the exporter keeps it.
    connection: BufReader<TcpStream>,
}

/// A program that ends with this process, however that ends.
pub fn child(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command
}

impl Served {
    /// The mrscope that was built beside this example, with that configuration; waits until it is
    /// ready.
    ///
    /// # Errors
    /// It was not built, or does not start.
    pub fn mrscope(config: &str) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?.with_file_name("").join("../mrscope");
        if !program.exists() {
            return Err(format!("{} is missing: cargo build --release", program.display()).into());
        }
        let file = std::env::temp_dir().join(format!("mrscope-bench-{}.yaml", std::process::id()));
        std::fs::write(&file, config)?;
        let mut command = child(program);
        command.args(["--web.listen-address", "127.0.0.1:0", "--config.file"]).arg(&file);
        let served = Self::start(&mut command, "msg=ready");
        std::fs::remove_file(file)?;
        served
    }

    /// Starts it, and waits until its log says a port and the last words.
    ///
    /// # Errors
    /// It ends before.
    pub fn start(command: &mut Command, last_words: &str) -> Result<Self, Box<dyn Error>> {
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no stderr")?);
        let (mut port, mut ready) = (None, false);
        while !ready || port.is_none() {
            let mut line = String::new();
            if log.read_line(&mut line)? == 0 {
                return Err(format!("{command:?} ended before it was ready").into());
            }
            port = port.or_else(|| port_in(&line));
            ready |= line.contains(last_words);
        }
        // It would wait for its log to be read.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let port = port.ok_or("no port")?;
        Ok(Self { child, port, connection: connect(port)? })
    }

    /// Another connection: an exporter closes one that was idle for long.
    ///
    /// # Errors
    /// It does not take it.
    pub fn reconnect(&mut self) -> Result<(), Box<dyn Error>> {
        self.connection = connect(self.port)?;
        Ok(())
    }

    /// The page as Prometheus asks for it, compressed if the exporter does that; its bytes.
    ///
    /// # Errors
    /// What HTTP allows.
    pub fn scrape(&mut self, path: &str) -> Result<Vec<u8>, Box<dyn Error>> {
        self.get(path, "Accept-Encoding: gzip\r\n")
    }

    /// The page as text, by a connection of its own.
    ///
    /// # Errors
    /// What HTTP allows.
    pub fn page(&mut self, path: &str) -> Result<String, Box<dyn Error>> {
        self.reconnect()?;
        Ok(String::from_utf8(self.get(path, "")?)?)
    }

    fn get(&mut self, path: &str, headers: &str) -> Result<Vec<u8>, Box<dyn Error>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        self.connection.get_mut().write_all(request.as_bytes())?;
        let status = self.line()?;
        if !status.contains(" 200 ") {
            return Err(format!("{path}: {status}").into());
        }
        let mut length = None;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(bytes) = line.strip_prefix("content-length: ") {
                length = Some(bytes.parse()?);
            }
        }
        let mut body = Vec::new();
        if let Some(bytes) = length {
            self.take(bytes, &mut body)?;
            return Ok(body);
        }
        loop {
            let bytes = usize::from_str_radix(&self.line()?, 16)?;
            self.take(bytes, &mut body)?;
            self.line()?;
            if bytes == 0 {
                return Ok(body);
            }
        }
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        if self.connection.read_line(&mut line)? == 0 {
            return Err("the connection was closed".into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn take(&mut self, bytes: usize, body: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
        let begun = body.len();
        body.resize(begun + bytes, 0);
        Ok(self.connection.read_exact(&mut body[begun..])?)
    }

    /// CPU time of all threads that it ever had, in milliseconds, by the kernel's clock of it.
    ///
    /// # Errors
    /// The kernel has no such clock.
    pub fn cpu_ms(&self) -> Result<f64, Box<dyn Error>> {
        let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: both write what they are given, and the child has not been waited for.
        let status = unsafe {
            match libc::clock_getcpuclockid(self.child.id() as i32, &raw mut clock) {
                0 => libc::clock_gettime(clock, &raw mut time),
                error => error,
            }
        };
        if status != 0 {
            return Err(format!("no clock of process {}", self.child.id()).into());
        }
        Ok(time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // SAFETY: a child that has not been waited for. TERM, so that it takes out its programs.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

fn connect(port: u16) -> Result<BufReader<TcpStream>, Box<dyn Error>> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

fn port_in(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once("127.0.0.1:")?;
    let digits = rest.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}
