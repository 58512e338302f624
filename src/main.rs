//! Parses, dispatches, and is the only place that ends the process.

use std::process::ExitCode;

use anyhow::Context;
use mrscope::cli::{self, Cli, CliError, LogLevel};
use mrscope::collector::{Engine, EngineOptions, ListsTasks, LiveTasks};
use mrscope::ebpf::{KernelEvents, Tracer};
use mrscope::host::Host;
use mrscope::ledger::LedgerOptions;
use mrscope::model::EbpfOptions;
use mrscope::serve;
use tokio::signal::unix::{SignalKind, signal};

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
    log_to_stderr(cli.log_level);
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mrscope: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("no runtime")?;
    // The address first: when it is taken, nothing was attached in vain.
    let listener = runtime.block_on(serve::listen(&cli.listen_address))?;
    let address = listener.local_addr().context("no address")?;

    let ebpf =
        EbpfOptions { attach: cli.attach, maxactive: cli.maxactive, ..EbpfOptions::default() };
    let options = EngineOptions {
        ledger: LedgerOptions { max_series: cli.max_processes, ..LedgerOptions::default() },
        ..EngineOptions::default()
    };
    // Before any probe is set: a signal must not end the process with probes left behind.
    let (mut term, mut interrupt) = {
        let _inside = runtime.enter();
        let on = |kind| signal(kind).context("no signal handler");
        (on(SignalKind::terminate())?, on(SignalKind::interrupt())?)
    };

    let open_events = move |host| {
        let tracer = Tracer::start(host, &ebpf)?;
        Ok(Box::new(tracer) as Box<dyn KernelEvents>)
    };
    let open_tasks = |host| Box::new(LiveTasks::open(host)) as Box<dyn ListsTasks>;
    let (pages, engine) =
        Engine::start(Host::live(), options, open_events, open_tasks).context("no thread")?;

    tracing::info!("serving http://{address}/metrics");
    let stop = async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
    };
    let served = runtime.block_on(serve::serve(listener, pages, stop));
    // Requests and their handles on the engine end with the runtime; then the engine ends, and
    // takes the probes out of the kernel.
    drop(runtime);
    if engine.join().is_err() {
        anyhow::bail!("the thread that reads the kernel panicked");
    }
    served.context("serving failed")
}

fn log_to_stderr(level: LogLevel) {
    let level = match level {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
}
