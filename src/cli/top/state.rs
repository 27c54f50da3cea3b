//! State of `top`: the data that it shows, and the effects of its keys.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::status::HostSnapshot;
use crate::service::tenants::clients::ClientView;

/// One reading of the host.
pub(super) struct TopData {
    pub(super) host: HostSnapshot,
    pub(super) clients: Vec<ClientView>,
}

/// The order of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientOrder {
    Memory,
    Age,
    Tenant,
    Pid,
}

impl ClientOrder {
    fn next(self) -> Self {
        match self {
            Self::Memory => Self::Age,
            Self::Age => Self::Tenant,
            Self::Tenant => Self::Pid,
            Self::Pid => Self::Memory,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Age => "age",
            Self::Tenant => "tenant",
            Self::Pid => "PID",
        }
    }
}

/// Everything that decides what is on the screen.
pub(super) struct TopState {
    pub(super) data: TopData,
    /// Reason for which the last reading failed; the one before it stays on the screen.
    pub(super) stale: Option<String>,
    pub(super) order: ClientOrder,
    pub(super) shows_help: bool,
    /// Lines that are scrolled away.
    pub(super) scrolled: usize,
    is_over: bool,
}

/// Lines of a page.
const PAGE: usize = 10;

impl TopState {
    pub(super) fn new(data: TopData) -> Self {
        let mut state = Self {
            data,
            stale: None,
            order: ClientOrder::Memory,
            shows_help: false,
            scrolled: 0,
            is_over: false,
        };
        state.sort();
        state
    }

    /// Returns true if the user has quit.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes a new reading, or the reason for which it failed.
    pub(super) fn read(&mut self, reading: Result<TopData, String>) {
        match reading {
            Ok(data) => {
                self.data = data;
                self.stale = None;
                self.sort();
            }
            Err(why) => self.stale = Some(why),
        }
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => self.is_over = true,
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Esc | KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.sort();
            }
            KeyCode::Down => self.scrolled += 1,
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled += PAGE,
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(PAGE),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
    }

    fn sort(&mut self) {
        let clients = &mut self.data.clients;
        clients.sort_by_key(|client| client.pid);
        match self.order {
            ClientOrder::Memory => clients.sort_by_key(|client| std::cmp::Reverse(memory(client))),
            ClientOrder::Age => clients.sort_by_key(|client| client.since),
            ClientOrder::Tenant => clients.sort_by(|a, b| a.tenant.cmp(&b.tenant)),
            ClientOrder::Pid => {}
        }
    }
}

/// The memory that a client holds, on all GPUs.
pub(super) fn memory(client: &ClientView) -> u64 {
    client.memory.iter().filter_map(|memory| memory.used_bytes).sum()
}
