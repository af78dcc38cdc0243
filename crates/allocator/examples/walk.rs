//! Walks the heap of a process, and prints its contents and the time taken: `cargo run --release -p rbloat-allocator
//! --example walk -- PID`.

#![expect(clippy::print_stdout, reason = "it is an example")]

use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let pid = std::env::args().nth(1).ok_or("which process?")?.parse()?;
    let frozen = image::freeze(pid, linux::PATIENCE)?;
    let begun = Instant::now();
    let modules = image::elf::modules(frozen.image());
    let have_modules = Instant::now();
    let found = allocator::find_allocator(frozen.image(), &modules, None);
    let have_allocator = Instant::now();
    let heap = allocator::walk(frozen.image(), &found, &[])?;
    println!(
        "modules {:?}, allocator {:?}, walk {:?}",
        have_modules - begun,
        have_allocator - have_modules,
        have_allocator.elapsed()
    );
    let looked = frozen.thaw()?;
    let pause = looked.pause;
    let pages = looked.state.pages.as_ref();
    let resident = |range| pages.map_or(0, |pages| pages.resident_bytes(range));

    println!("{}, {pause:?} in all, {:?}", heap.walker, heap.tuning);
    for arena in &heap.arenas {
        println!("{} in {} heaps: {:?}", arena.address, arena.heaps, arena.totals);
    }
    println!("all: {:?}", heap.totals);
    println!("trimmable: {}", heap.trimmable.iter().map(resident).sum::<u64>());
    for finding in &heap.findings {
        println!("{finding:?}");
    }
    Ok(())
}
