//! Reports the responses of HTTP/2 streams to the observer, and ends streams.

use super::conn::{H2Conn, Report};
use crate::h2::ErrorCode;
use crate::io::context::Context;
use crate::observer::{End, Exchange, Observer};
use crate::service::Service;

/// Resets a stream. [`ErrorCode::CANCEL`] means that the client has disconnected.
pub(super) fn drop_stream<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    code: ErrorCode,
) {
    let end = match code {
        ErrorCode::CANCEL => End::Left,
        _ => End::Cut,
    };
    report_failure(cx, conn, stream, end);
    conn.session.reset(stream, code);
}

/// Reports a response that stays incomplete.
pub(super) fn report_failure<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    end: End,
) {
    let body_len = conn.session.sent_len(stream);
    let Some(entry) = conn.session.data(stream) else {
        return;
    };
    let (outflow, failed) = (entry.outflow.take(), entry.report(body_len));
    cx.discard(outflow);
    if let Some(failed) = failed {
        report(cx.observer(), &failed, end);
    }
}

/// Reports all responses whose bytes the kernel has accepted.
pub(super) fn report_all(observer: &dyn Observer, conn: &mut H2Conn, end: End) {
    for sent in std::mem::take(&mut conn.unreported) {
        report(observer, &sent, end);
    }
}

fn report(observer: &dyn Observer, report: &Report, end: End) {
    observer.exchanged(&Exchange {
        head: report.request.head(),
        pattern: report.request.pattern(),
        extensions: report.request.extensions(),
        status: report.status,
        body_len: report.body_len,
        end,
        is_inline: false,
        tag: report.request.tag,
        duration: report.started.elapsed(),
    });
}
