//! Every recorded reply and log line, through the parser of its command.
