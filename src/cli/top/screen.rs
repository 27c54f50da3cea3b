//! The terminal of `top`: taken over, and given back whatever happens.

use std::io::{Stdout, stdout};
use std::sync::Once;
use std::time::Duration;

use crossterm::cursor::Show;
use crossterm::event::{Event, KeyEvent, KeyEventKind};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui_core::terminal::Terminal;
use ratatui_core::text::{Line, Text};
use ratatui_crossterm::CrosstermBackend;
use ratatui_widgets::paragraph::Paragraph;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// An event at the terminal.
pub(super) enum ScreenEvent {
    Key(KeyEvent),
    Resized,
    /// A signal ends the program, or the terminal is gone.
    Ended,
}

/// The terminal in raw mode, on its alternate screen.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    events: mpsc::Receiver<ScreenEvent>,
    terminate: Signal,
    hang_up: Signal,
}

/// Interval at which the thread that reads keys checks that they are still wanted.
const POLL_TIMEOUT: Duration = Duration::from_millis(200);

impl Screen {
    /// Takes the terminal over.
    pub(super) fn open() -> std::io::Result<Self> {
        restore_on_panic();
        let (terminate, hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        enable_raw_mode()?;
        let opened = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        let mut terminal = opened.inspect_err(|_| restore())?;
        terminal.hide_cursor().inspect_err(|_| restore())?;
        Ok(Self { terminal, events: keys(), terminate, hang_up })
    }

    /// Draws the lines that are made for the size of the terminal.
    pub(super) fn draw(
        &mut self,
        lines: impl FnOnce((usize, usize)) -> Vec<Line<'static>>,
    ) -> std::io::Result<()> {
        self.terminal.draw(|frame| {
            let area = frame.area();
            let lines = lines((area.width.into(), area.height.into()));
            frame.render_widget(Paragraph::new(Text::from(lines)), area);
        })?;
        Ok(())
    }

    /// The next thing that happens at the terminal.
    pub(super) async fn next(&mut self) -> ScreenEvent {
        tokio::select! {
            event = self.events.recv() => event.unwrap_or(ScreenEvent::Ended),
            _ = self.terminate.recv() => ScreenEvent::Ended,
            _ = self.hang_up.recv() => ScreenEvent::Ended,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Reads keys on a thread of its own, since reading blocks.
fn keys() -> mpsc::Receiver<ScreenEvent> {
    let (sender, events) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match crossterm::event::poll(POLL_TIMEOUT) {
                Ok(false) => continue,
                Ok(true) => crossterm::event::read(),
                Err(error) => Err(error),
            };
            let event = match event {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => ScreenEvent::Key(key),
                Ok(Event::Resize(..)) => ScreenEvent::Resized,
                Ok(_) => continue,
                Err(_) => ScreenEvent::Ended,
            };
            let is_last = matches!(event, ScreenEvent::Ended);
            if sender.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
    events
}

/// Gives the terminal back as it was.
fn restore() {
    // Nothing can be done if the terminal does not accept the output.
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Restores the terminal before a panic is reported, since the message is seen only on the ordinary screen.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}
