use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use ratatui_core::text::Text;
use ratatui_widgets::paragraph::Paragraph;

use super::*;
use crate::cli::top::state::{TopData, TopState};

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
