//! Compressed lines.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use ledger::Dump;

use super::ndjson::{Counts, write_lines};

/// Writes the roots and the objects of a heap, compressed by gzip on a thread of its own.
///
/// # Errors
/// If `out` cannot be written to.
pub fn write_compressed_lines(dump: &Dump<'_>, out: &mut (dyn Write + Send)) -> io::Result<Counts> {
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<u8>>(2);
        let compressor = scope.spawn(move || {
            let mut encoder = GzEncoder::new(out, Compression::fast());
            receiver.iter().try_for_each(|bytes| encoder.write_all(&bytes))?;
            encoder.finish().map(|_| ())
        });
        // The channel ends with `Chunks`.
        let written = write_lines(dump, &mut Chunks(sender));
        // If the compressor has ended, it knows the reason.
        let compressed = compressor.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        compressed.and(written)
    })
}

/// Sends what is written to it.
struct Chunks(std::sync::mpsc::SyncSender<Vec<u8>>);

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.send(bytes.to_vec());
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
