//! The page of a daemon's logs.

use crate::harness::{Answer, InProcess, Served};

/// A page as an admin's browser gets it.
pub(super) fn page(host: &Served, path: &str) -> String {
    let cookie = super::sessions::cookie(host, &host.token());
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: text/html\r\nCookie: {cookie}\r\n\r\n"
    );
    let answer = Answer::to_bytes(&host.url(), head.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.text
}

#[test]
fn own_polling_is_hidden_by_default() {
    let host = InProcess::ready();
    host.control("gpu0", "get_server_list");
    let hidden = page(&host, "/daemons/gpu0/logs");
    assert!(hidden.contains("lines of mps-manager's own polling hidden"), "{hidden}");
    assert!(hidden.contains("Starting new server") && hidden.contains("Cmd:zz-direct"), "{hidden}");
    assert!(!hidden.contains("set_default_active_thread_percentage"), "the manager's own: {hidden}");
    let shown = page(&host, "/daemons/gpu0/logs?own=true");
    assert!(shown.contains("Cmd:set_default_active_thread_percentage"), "{shown}");
    assert!(!shown.contains("own polling hidden"), "{shown}");
    assert!(!shown.contains("control.log.kept</a>"), "nothing was emptied yet");
    std::fs::write(
        host.runtime("daemons/gpu0/log/control.log.kept"),
        "[2026-11-21 02:54:12.998 Control 8] NEW SERVER 902: Ready\n",
    )
    .unwrap();
    let kept = page(&host, "/daemons/gpu0/logs?file=control_kept");
    assert!(kept.contains("control.log.kept</a>") && kept.contains("NEW SERVER 902: Ready"), "{kept}");
}
