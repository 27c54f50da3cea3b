//! Slots for further processes: those of a tenant, and those of a GPU, on which MPS takes a limited number of clients.

use super::client::{ClientId, places_taken};

/// Most clients that any known version of MPS takes on a GPU.
pub const MAX_CLIENTS: u32 = 60;
/// Device connections that a client takes unless `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise: 2 under MPS.
pub const USUAL_CONNECTIONS: u32 = 2;
/// Numbers of connections that `CUDA_DEVICE_MAX_CONNECTIONS` may give; CUDA ignores others (NVIDIA's documentation).
pub const CONNECTIONS: std::ops::RangeInclusive<u32> = 1..=32;
/// Device connections that all clients of a GPU have together: with 8 each, 15 of 30 were admitted (recording 08).
const DEVICE_CONNECTIONS: u32 = 127;

/// Slot that a waiting process lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacking {
    /// Its tenant has `max_clients` processes.
    TenantSlot,
    /// Its GPU has as many clients as MPS takes.
    GpuSlot,
}

/// A client as MPS counts it on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// Its process.
    pub id: ClientId,
    /// Its parent processes.
    pub ancestors: Vec<ClientId>,
    /// Device connections that it takes, by the environment it was started with.
    pub connections: u32,
}

/// Reason why a GPU takes no further client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// It has as many clients as MPS takes.
    Clients {
        /// Its clients, and processes that were started and have yet to connect.
        taken: usize,
        /// Number of clients that it takes.
        ceiling: u32,
    },
    /// Clients that raise `CUDA_DEVICE_MAX_CONNECTIONS` have taken the connections of the others.
    Connections {
        /// Its clients, and processes that were started and have yet to connect.
        taken: usize,
    },
}

impl std::fmt::Display for NoRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Clients { taken, ceiling } => {
                write!(f, "has {taken} of the {ceiling} clients that this version of MPS takes")
            }
            Self::Connections { taken } => write!(
                f,
                "has {taken} clients, of which some raise CUDA_DEVICE_MAX_CONNECTIONS and leave no connections for others"
            ),
        }
    }
}

/// Returns the reason why a GPU with these clients has no room for another process, or `None` if it has room. `admitted` are processes
/// that may connect at any moment, without the new one.
pub fn no_room(clients: &[Occupant], admitted: &[ClientId], ceiling: u32) -> Option<NoRoom> {
    let families: Vec<_> = clients.iter().map(|client| (client.id, client.ancestors.clone())).collect();
    let taken = places_taken(&families, admitted);
    if taken >= usize::try_from(ceiling).unwrap_or(usize::MAX) {
        return Some(NoRoom::Clients { taken, ceiling });
    }
    let awaited = u32::try_from(taken - clients.len()).unwrap_or(u32::MAX).saturating_add(1);
    let connections = clients
        .iter()
        .map(|client| client.connections)
        .fold(awaited.saturating_mul(USUAL_CONNECTIONS), u32::saturating_add);
    (connections > DEVICE_CONNECTIONS).then_some(NoRoom::Connections { taken })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(pid: u32, connections: u32) -> Occupant {
        Occupant { id: ClientId { pid, start_time: 1 }, ancestors: Vec::new(), connections }
    }

    #[test]
    fn the_last_place_is_given_once() {
        let clients: Vec<Occupant> = (1..=46).map(|pid| client(pid, 2)).collect();
        let admitted = |pid| ClientId { pid, start_time: 1 };
        assert_eq!(no_room(&clients, &[admitted(100)], 48), None);
        let full = no_room(&clients, &[admitted(100), admitted(101)], 48);
        assert_eq!(full, Some(NoRoom::Clients { taken: 48, ceiling: 48 }));
    }

    #[test]
    fn admitted_process_counts_until_it_connects() {
        let admitted = ClientId { pid: 7, start_time: 1 };
        assert_eq!(no_room(&[client(7, 2)], &[admitted], 2), None);
        assert_eq!(no_room(&[client(8, 2)], &[admitted], 2), Some(NoRoom::Clients { taken: 2, ceiling: 2 }));
    }

    #[test]
    fn raised_connections_leave_room_for_fewer() {
        let clients: Vec<Occupant> = (1..=15).map(|pid| client(pid, 8)).collect();
        assert_eq!(no_room(&clients[..14], &[], 48), None);
        let four: Vec<ClientId> = (50..53).map(|pid| ClientId { pid, start_time: 1 }).collect();
        assert_eq!(no_room(&clients, &four, 48), Some(NoRoom::Connections { taken: 18 }));
    }
}
