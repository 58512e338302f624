//! Takes connections: so many at once that files for everything else are left, and none for long
//! that does not say what it wants.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// How long a connection may be without a whole request. A scraper whose connection is closed
/// between two scrapes makes another.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a connection may last: who does not read its answer gives its place back.
const LIFETIME: Duration = Duration::from_mins(5);
/// Before the next try when there was no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Takes connections for good; dropped, it takes no more.
pub async fn accept(
    listener: TcpListener,
    router: Router,
    slots: Arc<Semaphore>,
    graceful: &GracefulShutdown,
) -> io::Result<Infallible> {
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of files or of memory, or a peer that was faster: none ends the service.
                tracing::debug!("a connection could not be taken: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = graceful.watch(connection(stream, router.clone()));
        tokio::spawn(async move {
            if let Ok(Err(error)) = tokio::time::timeout(LIFETIME, connection).await {
                tracing::debug!("a connection ended: {error}");
            }
            drop(slot);
        });
    }
}

type Connection = http1::Connection<TokioIo<TcpStream>, TowerToHyperService<Router>>;

fn connection(stream: TcpStream, router: Router) -> Connection {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
}
