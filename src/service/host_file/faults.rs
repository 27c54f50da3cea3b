//! The faults of a host file: all of the stage that found the first, each with its place in the file.

use crate::domain::count::counted;
use crate::domain::host_file::FileErrors;
use crate::domain::layout::Invalid;
use crate::service::{FieldError, Result, ServiceError};

/// Faults, and whether one of them is a conflict with the host and not an invalid file.
#[derive(Default)]
pub(super) struct Faults {
    errors: Vec<FieldError>,
    conflict: bool,
}

impl Faults {
    /// Creates the faults of the file itself.
    pub(super) fn of_file(errors: Vec<Invalid>) -> Self {
        Self { errors: fields(errors), conflict: false }
    }

    /// Creates the faults of the file on one host.
    pub(super) fn of_host(FileErrors { errors, conflict }: FileErrors) -> Self {
        Self { conflict, ..Self::of_file(errors) }
    }

    /// A conflict with what the host has.
    pub(super) fn conflict(&mut self, pointer: String, detail: impl Into<String>) {
        self.conflict = true;
        self.errors.push(FieldError { pointer, detail: detail.into() });
    }

    /// Keeps a result; a refusal becomes a fault of this part of the file, and anything else is passed on.
    pub(super) fn keep<T>(&mut self, within: &str, result: Result<T>) -> Result<Option<T>> {
        let error = match result {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        match error {
            ServiceError::Invalid(fields) => {
                self.errors.extend(fields.into_iter().map(|field| below(within, field)));
            }
            ServiceError::NotAdmitted(field) => {
                self.conflict = true;
                self.errors.push(below(within, field));
            }
            ServiceError::Conflict(detail) => self.conflict(within.to_owned(), detail),
            ServiceError::NotFound { .. } => self.conflict(within.to_owned(), error.to_string()),
            ServiceError::ForAudience { host, .. } => return self.keep(within, Err(*host)),
            other => return Err(other),
        }
        Ok(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// The refusal of the whole file.
    pub(super) fn refusal(self) -> ServiceError {
        if !self.conflict {
            return ServiceError::Invalid(self.errors);
        }
        let detail = match self.errors.as_slice() {
            [only] => only.detail.clone(),
            several => format!("nothing was changed, because of {}", counted(several.len(), "fault")),
        };
        ServiceError::HostFileRefused { detail, errors: self.errors }
    }

    /// Refuses the file if anything was found.
    pub(super) fn check(self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(self.refusal()) }
    }
}

/// Converts errors of a file to the field errors of the API.
pub(super) fn fields(errors: Vec<Invalid>) -> Vec<FieldError> {
    let field = |Invalid { pointer, reason }| FieldError { pointer, detail: reason.to_string() };
    errors.into_iter().map(field).collect()
}

fn below(within: &str, FieldError { pointer, detail }: FieldError) -> FieldError {
    FieldError { pointer: format!("{within}{pointer}"), detail }
}
