//! The HTTP side: the only async room. It hands out pages and never touches the kernel.

mod status;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tower_http::compression::predicate::SizeAbove;
use tower_http::compression::{CompressionLayer, CompressionLevel};

use crate::cli::ListenAddress;
use crate::collector::Pages;
use crate::metrics::CONTENT_TYPE;

/// A page is waited for no longer than a scraper would.
const PAGE_DEADLINE: Duration = Duration::from_secs(10);
/// How long requests under way may take when mrscope stops.
const STOP_GRACE: Duration = Duration::from_millis(300);
/// Level 6 takes seven times as long for a page a tenth smaller.
const GZIP_LEVEL: i32 = 1;
/// Smaller answers gain nothing from gzip.
const GZIP_FROM_BYTES: u64 = 256;

/// The address could not be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "can't listen on {address}, expected a free address of this machine for --web.listen-address"
)]
pub struct ListenError {
    pub address: String,
    source: io::Error,
}

/// Takes the address.
///
/// # Errors
/// It is in use, or not of this machine.
pub async fn listen(address: &ListenAddress) -> Result<TcpListener, ListenError> {
    let bound = match address {
        ListenAddress::At(address) => TcpListener::bind(address.as_str()).await,
        ListenAddress::Any(port) => {
            match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port))).await {
                // A machine without IPv6.
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port))).await
                }
                bound => bound,
            }
        }
    };
    bound.map_err(|source| ListenError { address: address.to_string(), source })
}

/// Serves until `stop` completes, then gives requests under way a moment.
///
/// # Errors
/// The listener fails, or the pages' thread has ended.
pub async fn serve(
    listener: TcpListener,
    pages: Pages,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let signal = async move {
        stop.await;
        // Received or not: the grace below ends either way.
        let _ = stopping.send(());
    };
    let server = axum::serve(listener, router(pages.clone())).with_graceful_shutdown(signal);
    tokio::select! {
        () = pages.ended() => Err(io::Error::other("the thread that reads the kernel has ended")),
        served = server.into_future() => served,
        () = async {
            if stopped.await.is_ok() {
                tokio::time::sleep(STOP_GRACE).await;
            } else {
                std::future::pending::<()>().await;
            }
        } => Ok(()),
    }
}

fn router(pages: Pages) -> Router {
    let gzip = CompressionLayer::new()
        .gzip(true)
        .quality(CompressionLevel::Precise(GZIP_LEVEL))
        .compress_when(SizeAbove::new(GZIP_FROM_BYTES));
    Router::new()
        .route("/", get(status::page))
        .route("/metrics", get(metrics))
        .route("/-/healthy", get(|| async { "mrscope is healthy.\n" }))
        .route("/-/ready", get(ready))
        .layer(gzip)
        .with_state(pages)
}

/// The figures; `collect[]=x`, which may be repeated, asks for those of some collectors only.
async fn metrics(State(pages): State<Pages>, RawQuery(query): RawQuery) -> Response {
    let named: Vec<_> = form_urlencoded::parse(query.unwrap_or_default().as_bytes())
        .filter(|(key, _)| key == "collect[]")
        .map(|(_, collector)| collector.into_owned())
        .collect();
    let choice = match pages.choose(&named) {
        Ok(choice) => choice,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match tokio::time::timeout(PAGE_DEADLINE, pages.get(choice)).await {
        Ok(Ok(text)) => ([(CONTENT_TYPE_HEADER, CONTENT_TYPE)], text).into_response(),
        Ok(Err(error)) => unavailable(&error.to_string()),
        Err(_) => unavailable("the page took too long"),
    }
}

async fn ready(State(pages): State<Pages>) -> Response {
    if pages.ready() {
        "mrscope is ready.\n".into_response()
    } else {
        unavailable("mrscope is starting")
    }
}

fn unavailable(reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
}
