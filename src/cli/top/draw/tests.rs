use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use ratatui_core::text::Text;
use ratatui_widgets::paragraph::Paragraph;

use super::*;
use crate::cli::top::state::{TopData, TopState};
use crate::domain::condition::{Condition, ConditionType};
use crate::domain::{DaemonName, GpuUuid};

/// A simulated host with two GPUs and three clients, as its API described it.
fn state() -> TopState {
    let text = include_str!("../../../../tests/fixtures/cli/top.json");
    let mut read: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let clients = serde_json::from_value(read["clients"].take()).expect("clients");
    let host = serde_json::from_value(read["status"].take()).expect("a status");
    TopState::new(TopData { host, clients })
}

fn screen(state: &TopState, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let lines = lines(state, width.into(), height.into());
    for line in lines.iter().filter(|_| width >= 40) {
        assert!(line.width() <= width.into(), "{width}: {line}");
    }
    terminal
        .draw(|frame| frame.render_widget(Paragraph::new(Text::from(lines)), frame.area()))
        .expect("drawn");
    let buffer = terminal.backend().buffer();
    let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

fn press(state: &mut TopState, code: KeyCode) {
    state.press(KeyEvent::new(code, KeyModifiers::NONE));
}

#[test]
fn screens_of_every_width_show_all_parts() {
    let state = state();
    for width in [40, 80, 160] {
        let screen = screen(&state, width, 40);
        let text = screen.join("\n");
        assert!(screen[0].contains("SIMULATED"), "{text}");
        for part in
            ["GPU 0", "GPU 1", "SM limits ", "of 139.8 GiB", "TENANT", "demo", "batch", "PID", "MEMORY"]
        {
            assert!(text.contains(part), "{width}: {part}:\n{text}");
        }
        assert!(screen[39].starts_with("q quit"), "{text}");
    }
}

#[test]
fn sixteen_gpus_keep_their_columns() {
    let mut state = state();
    let host = &mut state.data.host;
    let (gpu, daemon) = (host.gpus[0].clone(), host.daemons[0].clone());
    host.gpus.clear();
    host.daemons.clear();
    for index in 0..16_u32 {
        let uuid =
            GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-0000000000{index:02}")).expect("a UUID");
        let used = if index % 3 == 0 { 13 << 30 } else { 74 << 20 };
        let mut gpu_view =
            GpuView { uuid: uuid.clone(), index: Some(index), memory_used: Some(used), ..gpu.clone() };
        gpu_view.name = Some("NVIDIA H100 80GB HBM3".into());
        host.gpus.push(gpu_view);
        let name = DaemonName::parse(&format!("gpu{index}")).expect("a name");
        let mut of = DaemonView { name, ..daemon.clone() };
        of.spec.gpus = vec![uuid];
        host.daemons.push(of);
    }
    for width in [80, 120, 160] {
        let screen = screen(&state, width, 60);
        let bars: Vec<&String> = screen.iter().filter(|line| line.contains("SM limits")).collect();
        assert_eq!(bars.len(), 16, "{screen:?}");
        let columns = |line: &str| {
            line.char_indices()
                .filter(|(_, letter)| *letter == '[')
                .map(|(offset, _)| line[..offset].chars().count())
                .collect::<Vec<_>>()
        };
        for line in &bars {
            assert_eq!(columns(line), columns(bars[0]), "{width}: {bars:?}");
        }
        for index in 0..16 {
            let line = screen
                .iter()
                .find(|line| line.starts_with(&format!("GPU {index:<2}  gpu{index}  ")))
                .expect("its line");
            assert!(line.contains(" ready"), "{line}");
        }
    }
}

#[test]
fn cut_screen_says_that_there_is_more() {
    let mut state = state();
    let low = screen(&state, 80, 12);
    assert!(low[10].starts_with("… ") && low[10].ends_with("more lines: scroll down"), "{low:?}");
    for _ in 0..9 {
        press(&mut state, KeyCode::PageDown);
    }
    let end = screen(&state, 80, 12);
    assert!(!end.join("\n").contains("more lines"), "{end:?}");
}

#[test]
fn open_incident_stands_there_once() {
    let mut state = state();
    let shown = |state: &TopState| screen(state, 160, 40).join("\n").matches("bypass").count();
    let daemon = &mut state.data.host.daemons[0];
    let status = daemon.status.as_mut().expect("a status");
    let reason = crate::domain::condition::ConditionReason::ProcessOutsideMps;
    let message = "process 7 is a bypass";
    status.conditions.push(Condition::new(ConditionType::Bypass, true, reason, message));
    let name = daemon.name.clone();
    assert_eq!(shown(&state), 1, "the condition alone");
    let incident = serde_json::json!({
        "id": 4, "kind": "bypass", "severity": "warning", "state": "open", "daemon": name, "gpus": [], "tenants": [],
        "summary": "process 7 is a bypass", "detail": "", "remedy": "", "opened_at": "2026-11-25T05:03:49Z", "recovered_at": null, "ended_by": null, "time_to_recovery_ms": null, "acknowledged": null,
        "suspected": [], "fault": null, "affected": [], "affected_is_uncertain": false, "unaffected": null, "workloads": {}, "occurrences": 1, "events": [],
    });
    state.data.host.incidents = vec![serde_json::from_value(incident).expect("an incident")];
    assert_eq!(shown(&state), 1, "the incident alone");
    state.data.host.incidents[0].state = IncidentState::Recovered;
    assert_eq!(shown(&state), 2, "it may be another");
}

#[test]
fn wide_screens_show_commands() {
    let state = state();
    assert!(screen(&state, 160, 40).join("\n").contains("COMMAND"));
    assert!(!screen(&state, 40, 40).join("\n").contains("COMMAND"));
}

#[test]
fn tiny_screens_are_drawn() {
    let state = state();
    for (width, height) in [(1, 1), (10, 2), (20, 5)] {
        assert_eq!(screen(&state, width, height).len(), usize::from(height));
    }
}

#[test]
fn keys_sort_help_scroll_and_quit() {
    let mut state = state();
    let pids = |state: &TopState| state.data.clients.iter().map(|client| client.pid).collect::<Vec<_>>();
    for _ in 0..3 {
        press(&mut state, KeyCode::Char('s'));
    }
    assert!(pids(&state).is_sorted(), "sorted by PID");
    press(&mut state, KeyCode::Char('s'));
    assert!(state.data.clients.iter().map(memory).is_sorted_by(|a, b| a >= b), "sorted by memory");
    press(&mut state, KeyCode::Char('?'));
    assert!(screen(&state, 40, 12).join("\n").contains("scroll by a line"));
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::PageDown);
    let last = screen(&state, 40, 8);
    assert!(last[0].contains("SIMULATED") && last[7].starts_with("q quit"), "{last:?}");
    assert!(!state.is_over());
    press(&mut state, KeyCode::Char('q'));
    assert!(state.is_over());
}

#[test]
fn failed_reading_keeps_the_last_one() {
    let mut state = state();
    state.read(Err("/run/api.sock cannot be reached".into()));
    let screen = screen(&state, 80, 30);
    assert!(screen.join("\n").contains("demo"));
    assert!(screen[29].starts_with("not updated: /run/api.sock"), "{screen:?}");
}
