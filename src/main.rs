//! Parses, dispatches, and is the only place that ends the process.

use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use anyhow::Context;
use mrscope::cli::{self, CliError, Command};
use mrscope::collector::{
    CountsTlb, Engine, EngineOptions, ListsTasks, LiveTasks, LiveTlb, Openers, Prober, Probes,
    SourceOptions,
};
use mrscope::config::{Config, LogLevel};
use mrscope::ebpf::{EventsError, KernelEvents, Tracer, Unwatched};
use mrscope::host::{Host, Rights, raise_memlock, raise_open_files};
use mrscope::ledger::LedgerOptions;
use mrscope::model::{BenchOptions, COLLECTORS, EbpfOptions, ProcessLabel, Watched};
use mrscope::nldev::LiveResources;
use mrscope::probe::program_beside;
use mrscope::{log, metrics, serve};
use rustix::event::{EventfdFlags, eventfd};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A scraper needs one; those beyond wait to be taken.
const CONNECTIONS: usize = 1024;

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(CliError::Shown(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(CliError::Usage(line)) => {
            eprintln!("mrscope: {line}");
            return ExitCode::from(2);
        }
    };
    let config = || cli.config().map_err(anyhow::Error::from);
    let done = match &cli.command {
        Some(Command::Metrics) => print_metrics(),
        Some(Command::Bench(options)) => bench(options),
        Some(Command::Check { strict }) => {
            config().and_then(check).map(|complete| complete || !*strict)
        }
        None => config().and_then(run).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mrscope: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print_metrics() -> anyhow::Result<bool> {
    std::io::stdout().write_all(metrics::docs::markdown().as_bytes()).context("can't print")?;
    Ok(true)
}

/// Whether all that is asked for is there.
fn check(mut config: Config) -> anyhow::Result<bool> {
    // The table tells what the log would.
    config.log.level = match config.log.level {
        LogLevel::Info => LogLevel::Warn,
        chosen => chosen,
    };
    log::to_stderr(config.log);
    rustix::thread::set_no_new_privs(true).context("no_new_privs")?;
    raise_memlock();
    let host = open_host(&config)?;
    let options = engine_options(&config);
    let look = Engine::look(host, options, openers(&config)).context("no thread")?;
    let verdict = mrscope::check::judge(&look);
    std::io::stdout().write_all(verdict.text.as_bytes()).context("can't print")?;
    Ok(verdict.complete)
}

/// Whether every row of the table has all its figures.
fn bench(options: &BenchOptions) -> anyhow::Result<bool> {
    rustix::thread::set_no_new_privs(true).context("no_new_privs")?;
    // The probe inherits the limit.
    raise_memlock();
    let stop = stop_by_signal()?;
    let is_watched = std::io::stderr().is_terminal();
    let say = |line: String| {
        if is_watched {
            // Over the last such line; what can't be shown is not needed either.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
    };
    let progress = |at: &mrscope::bench::Progress| say(at.to_string());
    let program = program_beside();
    let outcome = mrscope::bench::run(&Host::live(), &program, options, stop.as_fd(), progress);
    say(String::new());
    let outcome = outcome?;
    let text = if options.json {
        outcome.json().context("no JSON")?
    } else {
        mrscope::bench::text(&outcome)
    };
    std::io::stdout().write_all(text.as_bytes()).context("can't print")?;
    Ok(outcome.complete)
}

/// A file that can be read once TERM or INT has come.
fn stop_by_signal() -> anyhow::Result<OwnedFd> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("no runtime")?;
    let (mut term, mut interrupt) = signals(&runtime)?;
    let stop = eventfd(0, EventfdFlags::CLOEXEC).context("no eventfd")?;
    let told = stop.try_clone().context("no eventfd")?;
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        let _ = rustix::io::write(&told, &1u64.to_ne_bytes());
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("no thread")?;
    Ok(stop)
}

/// TERM and INT, which from now on end nothing by themselves.
fn signals(runtime: &Runtime) -> anyhow::Result<(Signal, Signal)> {
    let _inside = runtime.enter();
    let on = |kind| signal(kind).context("no signal handler");
    Ok((on(SignalKind::terminate())?, on(SignalKind::interrupt())?))
}

fn run(config: Config) -> anyhow::Result<()> {
    log::to_stderr(config.log);
    // Inherited by all threads: nothing that is run from here gains rights.
    rustix::thread::set_no_new_privs(true).context("no_new_privs")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(|| {
            if let Err(error) = Rights::NONE.keep() {
                tracing::error!("a thread that serves keeps its capabilities: {error}");
            }
        })
        .build()
        .context("no runtime")?;
    raise_memlock();
    // Half of the files are for everything else.
    let connections = (raise_open_files() / 2).min(CONNECTIONS);
    // The addresses first: when one is taken, nothing was attached in vain.
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for address in &config.web.listen_addresses {
        let listener = runtime.block_on(serve::listen(address))?;
        addresses.push(listener.local_addr().context("no address")?);
        listeners.push(listener);
    }
    let options = engine_options(&config);
    let host = open_host(&config)?;
    // Before any probe is set: a signal must not end the process with probes left behind.
    let (mut term, mut interrupt) = signals(&runtime)?;

    let (pages, engine) = Engine::start(host, options, openers(&config)).context("no thread")?;

    // Whoever reaches the port meets threads that may do nothing; the sources have theirs already.
    if let Err(error) = Rights::NONE.keep() {
        drop((runtime, pages));
        // Its end takes the probes out of the kernel.
        let _ = engine.join();
        return Err(error).context("can't give up capabilities");
    }

    let path = config.web.telemetry_path;
    for address in addresses {
        tracing::info!("serving http://{address}{path}");
    }
    let stop = async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
    };
    let served = runtime.block_on(serve::serve(listeners, &path, pages, connections, stop));
    // Requests and their handles on the engine end with the runtime; then the engine ends, and
    // takes the probes out of the kernel.
    drop(runtime);
    if engine.join().is_err() {
        anyhow::bail!("the thread that makes the pages panicked");
    }
    served.context("serving failed")
}

fn open_host(config: &Config) -> anyhow::Result<Host> {
    for (key, path) in [("procfs", &config.path.procfs), ("sysfs", &config.path.sysfs)] {
        if !path.is_dir() {
            anyhow::bail!(
                "path.{key}: {} is no folder, expected where {key} is mounted",
                path.display()
            );
        }
    }
    Ok(Host::new(&config.path.procfs, &config.path.sysfs))
}

/// What opens the sources, each on its thread.
fn openers(config: &Config) -> Openers {
    let watched = Watched {
        mr: config.enabled("mr"),
        mlock: config.enabled("mlock").then_some(config.mlock),
    };
    let placement = config.enabled("placement") && config.placement.pages;
    let ebpf = EbpfOptions { watched, placement, ..config.ebpf.clone() };
    let mut write_probe = config.write_probe.clone();
    write_probe.exclude.0.extend(config.devices.exclude.0.iter().cloned());
    let (tlb, permanent_drop) = (config.tlb.clone(), config.ebpf.permanent_drop);
    Openers {
        events: Box::new(move |host| {
            if watched.nothing() {
                Rights::NONE.keep().map_err(|error| EventsError::Denied(error.to_string()))?;
                return Ok(Box::new(Unwatched) as Box<dyn KernelEvents>);
            }
            Ok(Box::new(Tracer::start(host, &ebpf)?))
        }),
        tasks: Box::new(|host| Box::new(LiveTasks::open(host)) as Box<dyn ListsTasks>),
        tlb: Box::new(move |host| {
            Box::new(LiveTlb::open(host, &tlb, permanent_drop)) as Box<dyn CountsTlb>
        }),
        resources: Box::new(|host| Box::new(LiveResources::of(host))),
        write_probe: Box::new(|host| {
            Ok(Box::new(Prober::start(host, write_probe)?) as Box<dyn Probes>)
        }),
    }
}

fn engine_options(config: &Config) -> EngineOptions {
    let labels = config.process.labels.clone();
    EngineOptions {
        ledger: LedgerOptions {
            max_series: config.process.max,
            linger: config.process.linger,
            labels_name_one: labels.contains(&ProcessLabel::Pid),
        },
        labels,
        sources: SourceOptions {
            tlb: config.tlb.clone(),
            resources: config.resources.clone(),
            placement: config.placement,
            excluded: config.devices.exclude.clone(),
            permanent_drop: config.ebpf.permanent_drop,
        },
        off: COLLECTORS.into_iter().filter(|collector| !config.enabled(collector)).collect(),
    }
}
