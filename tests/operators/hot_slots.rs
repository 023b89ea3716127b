//! Long texts whose sets of wanted entries drift: `hot_slots`, step by step on its own state, beside
//! the plain loop, and what must hold after each step. Then steps that a device may start before the
//! step before them has ended.
//!
//! `SPEC_STEPS` is the number of steps of all texts together; without it, 1,000,000 on a CPU, 100,000
//! on a GPU and 5,000 on a software renderer.

use spec::ops::HotSlots;
use spec::ops::hot_slots::{Buffers, Required, Tensors};
use spec::{Buffer, DType, Descriptor, Device, Handle, Result, Stream, TensorDesc};
use spec_conformance::Rng;
use spec_conformance::plain::Plain;

/// Rows of a call, and requests that they may be.
const ROWS: usize = 60;
const TABLES: usize = 64;
const M: usize = 24;
const H: usize = 40;
const TAIL: usize = 2;
const BLOCK: usize = 4;
const BLOCKS: usize = (H + TAIL).div_ceil(BLOCK);

/// The texts, and the arguments of a call.
struct Texts {
    rng: Rng,
    lengths: [i32; TABLES],
    /// Around which entry each text looks for others.
    focus: [i32; TABLES],
    wanted: Vec<i32>,
    requests: Vec<i32>,
    step: Vec<i32>,
    reset: Vec<i32>,
    tail_starts: Vec<i32>,
    block_table: Vec<i32>,
}

impl Texts {
    fn new() -> Self {
        // The blocks of a buffer lie anywhere in the cache. Some buffers do not have all of their
        // blocks yet, but each has the blocks of its tail.
        let mut rng = Rng::new(7, "hot_slots");
        let mut block_table: Vec<i32> =
            rng.permutation(TABLES * BLOCKS).into_iter().map(|block| block as i32).collect();
        for table in 0..TABLES / 4 {
            block_table[table * BLOCKS + rng.below(H / BLOCK)] = -1;
        }
        Texts {
            rng,
            lengths: [200; TABLES],
            focus: [100; TABLES],
            wanted: vec![0; ROWS * M],
            requests: vec![0; ROWS],
            step: vec![0; ROWS],
            reset: vec![0; ROWS],
            tail_starts: vec![0; ROWS],
            block_table,
        }
    }

    /// The next step of some of the texts. One that ends gives its buffer to a new text.
    fn advance(&mut self) {
        let rng = &mut self.rng;
        let order = rng.permutation(TABLES);
        for (row, &table) in order.iter().take(ROWS).enumerate() {
            self.requests[row] = if rng.chance(20) { -1 } else { table as i32 };
            self.reset[row] = i32::from(rng.chance(100));
            if self.reset[row] != 0 {
                (self.lengths[table], self.focus[table]) = (200, 100);
            }
            self.lengths[table] += 1 + rng.below(3) as i32;
            let length = self.lengths[table];
            self.focus[table] = (self.focus[table] + rng.below(7) as i32 - 2).clamp(0, length - 1);
            self.step[row] = length;
            self.tail_starts[row] = length - TAIL as i32;
            for wanted in &mut self.wanted[row * M..][..M] {
                let near = self.focus[table] + rng.below(28) as i32;
                *wanted = match rng.below(40) {
                    0 => -1,
                    1 => rng.below(length as usize) as i32,
                    2 => length - 1,
                    _ => near.min(length - 1),
                };
            }
        }
    }
}

fn tensors(params: &HotSlots) -> Tensors {
    let table = TensorDesc::new(DType::I32, [TABLES, H]);
    let per_row = TensorDesc::new(DType::I32, [ROWS]);
    let mut tensors = params.tensors(ROWS, M, H).requests(per_row).reset(per_row);
    (tensors.resident, tensors.used, tensors.step) = (table, table, per_row);
    let tensors = tensors.tail_starts(per_row).flags(TensorDesc::new(DType::U32, [1]));
    tensors.block_table(TensorDesc::new(DType::I32, [TABLES, BLOCKS]))
}

/// What a call writes, besides the flags.
struct State<T> {
    resident: T,
    used: T,
    slots: T,
    fetch_positions: T,
    fetch_slots: T,
    fetches: T,
}

impl State<Buffer<i32>> {
    fn read(&self) -> Result<State<Vec<i32>>> {
        Ok(State {
            resident: self.resident.to_vec()?,
            used: self.used.to_vec()?,
            slots: self.slots.to_vec()?,
            fetch_positions: self.fetch_positions.to_vec()?,
            fetch_slots: self.fetch_slots.to_vec()?,
            fetches: self.fetches.to_vec()?,
        })
    }
}

impl State<Vec<i32>> {
    fn named(&self) -> [(&str, &[i32]); 6] {
        [
            ("resident", &self.resident),
            ("used", &self.used),
            ("slots", &self.slots),
            ("fetch_positions", &self.fetch_positions),
            ("fetch_slots", &self.fetch_slots),
            ("fetches", &self.fetches),
        ]
    }

    /// Every wanted entry lies in a place that holds it, and no place is given to two entries.
    fn check(&self, texts: &Texts) {
        for row in 0..ROWS {
            let Ok(table) = usize::try_from(texts.requests[row]) else { continue };
            let blocks = &texts.block_table[table * BLOCKS..][..BLOCKS];
            let mut holder = std::collections::HashMap::new();
            for column in row * M..(row + 1) * M {
                let (entry, place) = (texts.wanted[column], self.slots[column]);
                assert_eq!(entry < 0, place < 0, "an entry has a place: {entry}");
                if entry < 0 {
                    continue;
                }
                let block = blocks.iter().position(|&block| block == place / BLOCK as i32);
                let slot = block.expect("a block of the request") * BLOCK + place as usize % BLOCK;
                match entry - texts.tail_starts[row] {
                    ..0 => assert_eq!(self.resident[table * H + slot], entry),
                    behind => assert_eq!(slot, H + behind as usize),
                }
                assert_eq!(*holder.entry(place).or_insert(entry), entry);
            }
        }
    }
}

fn check(handle: &Handle, steps: usize) -> Result<()> {
    let params = HotSlots::new().tail(TAIL).block_size(BLOCK);
    let tensors = tensors(&params);
    let plain = Descriptor::create(&Plain::default(), &params, &tensors)?;
    let operator = handle.create(&params, &tensors)?;
    let mut workspace = operator.workspace(handle)?;
    let mut texts = Texts::new();
    // The first state has any bits.
    let mut any = |count: usize| -> Vec<i32> {
        (0..count).map(|_| texts.rng.next() as i32 >> texts.rng.below(32)).collect()
    };
    let mut expected = State {
        resident: any(TABLES * H),
        used: any(TABLES * H),
        slots: vec![0; ROWS * M],
        fetch_positions: vec![0; ROWS * M],
        fetch_slots: vec![0; ROWS * M],
        fetches: vec![0; ROWS],
    };
    let mut there = State {
        resident: handle.upload(&expected.resident)?,
        used: handle.upload(&expected.used)?,
        slots: handle.allocate(ROWS * M)?,
        fetch_positions: handle.allocate(ROWS * M)?,
        fetch_slots: handle.allocate(ROWS * M)?,
        fetches: handle.allocate(ROWS)?,
    };
    let mut flags_there = handle.upload(&[0_u32])?;
    let block_table = handle.upload(&texts.block_table)?;
    let (mut wanted_count, mut fetch_count) = (0, 0);
    for call in 0..steps.div_ceil(ROWS) {
        texts.advance();
        let mut flags = [0_u32];
        let buffers = Buffers::new(Required {
            wanted: (&texts.wanted).into(),
            resident: (&mut expected.resident).into(),
            used: (&mut expected.used).into(),
            step: (&texts.step).into(),
            slots: (&mut expected.slots).into(),
            fetch_positions: (&mut expected.fetch_positions).into(),
            fetch_slots: (&mut expected.fetch_slots).into(),
            fetches: (&mut expected.fetches).into(),
        });
        let buffers = buffers.requests(&texts.requests).reset(&texts.reset);
        let buffers = buffers.tail_starts(&texts.tail_starts).block_table(&texts.block_table);
        plain.call(&mut [0_u8; 0], buffers.flags(&mut flags))?;
        expected.check(&texts);
        wanted_count += texts.wanted.iter().filter(|&&entry| entry >= 0).count();
        fetch_count += expected.fetches.iter().sum::<i32>() as usize;
        let wanted = handle.upload(&texts.wanted)?;
        let requests = handle.upload(&texts.requests)?;
        let step = handle.upload(&texts.step)?;
        let tail_starts = handle.upload(&texts.tail_starts)?;
        // Now and then the step runs twice: the second run has nothing to do.
        for again in 0..1 + usize::from(call % 16 == 0) {
            let reset = if again == 0 { texts.reset.clone() } else { vec![0; ROWS] };
            let reset = handle.upload(&reset)?;
            let buffers = Buffers::new(Required {
                wanted: (&wanted).into(),
                resident: (&mut there.resident).into(),
                used: (&mut there.used).into(),
                step: (&step).into(),
                slots: (&mut there.slots).into(),
                fetch_positions: (&mut there.fetch_positions).into(),
                fetch_slots: (&mut there.fetch_slots).into(),
                fetches: (&mut there.fetches).into(),
            });
            let buffers = buffers.requests(&requests).reset(&reset).tail_starts(&tail_starts);
            let buffers = buffers.block_table(&block_table).flags(&mut flags_there);
            operator.call(&mut workspace, buffers)?;
            let got = there.read()?;
            for ((name, got), (_, expected)) in got.named().into_iter().zip(expected.named()) {
                let is_list = name.starts_with("fetch");
                let is_right = match again {
                    0 => got == expected,
                    _ if is_list => {
                        got.iter().all(|&one| one == if name == "fetches" { 0 } else { -1 })
                    }
                    _ => got == expected,
                };
                assert!(is_right, "{name} of call {call}, run {again}, on {}", handle.device());
            }
        }
        assert_eq!(flags_there.to_vec()?, flags, "call {call} on {}", handle.device());
    }
    println!("{}: {steps} steps, {fetch_count} fetches of {wanted_count}", handle.device());
    assert!(fetch_count * 20 > wanted_count && fetch_count * 2 < wanted_count);
    Ok(())
}

#[test]
fn slots_of_long_texts_are_those_of_the_plain_loop() -> Result<()> {
    let asked = std::env::var("SPEC_STEPS").ok().map(|n| n.parse().expect("a number"));
    for handle in crate::common::handles() {
        let usual = match handle.device() {
            Device::CPU => 1_000_000,
            _ if handle.info().software => 5_000,
            _ => 100_000,
        };
        check(&handle, asked.unwrap_or(usual))?;
    }
    Ok(())
}

/// Rows, wanted entries of a row, slots, and steps that follow one another without a pause.
const CHAINED: [usize; 4] = [5, 2048, 4096, 40];

/// The entries that a row wants in a step: every second number of a window that moves. The step
/// after the next one wants most of these numbers, and the next step none of them.
fn window(step: usize, row: usize) -> impl Iterator<Item = i32> {
    let [_, m, ..] = CHAINED;
    (0..m).map(move |column| (1000 * row + 65 * step + 2 * column) as i32)
}

/// Runs steps one behind the other on `handle`, and compares the results of each step, and the state
/// after the last step, with those of the plain loop. `mapped`: row r has row rows - 1 - r of the state.
fn check_chain(handle: &Handle, mapped: bool) -> Result<()> {
    let [rows, m, h, steps] = CHAINED;
    let params = HotSlots::new();
    let mut tensors = params.tensors(rows, m, h);
    if mapped {
        tensors = tensors.requests(TensorDesc::new(DType::I32, [rows]));
    }
    let plain = Descriptor::create(&Plain::default(), &params, &tensors)?;
    let operator = handle.create(&params, &tensors)?;
    let mut workspace = operator.workspace(handle)?;
    let wanted: Vec<Vec<i32>> =
        (0..steps).map(|step| (0..rows).flat_map(|row| window(step, row)).collect()).collect();
    let requests: Vec<i32> = (0..rows as i32).rev().collect();
    let (mut resident, mut used) = (vec![-1; rows * h], vec![0; rows * h]);
    // All memory of the device is made here, so that nothing comes between the calls of two steps.
    let upload = |values: &Vec<i32>| handle.upload(values);
    let wanted_there = wanted.iter().map(upload).collect::<Result<Vec<_>>>()?;
    let numbers = (0..steps).map(|step| upload(&vec![step as i32]));
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    let requests_there = upload(&requests)?;
    let (mut resident_there, mut used_there) = (upload(&resident)?, upload(&used)?);
    let place = |columns: usize| handle.allocate::<i32>(rows * columns);
    let places = |_| Ok([place(m)?, place(m)?, place(m)?, place(1)?]);
    let mut results = (0..steps).map(places).collect::<Result<Vec<[Buffer<i32>; 4]>>>()?;
    for ((wanted, number), given) in wanted_there.iter().zip(&numbers).zip(&mut results) {
        let [slots, fetch_positions, fetch_slots, fetches] = given;
        let mut buffers = Buffers::new(Required {
            wanted: wanted.into(),
            resident: (&mut resident_there).into(),
            used: (&mut used_there).into(),
            step: number.into(),
            slots: slots.into(),
            fetch_positions: fetch_positions.into(),
            fetch_slots: fetch_slots.into(),
            fetches: fetches.into(),
        });
        if mapped {
            buffers = buffers.requests(&requests_there);
        }
        operator.call_on(&mut workspace, buffers, Stream::default().dependent_launch())?;
    }
    for (step, (wanted, given)) in wanted.iter().zip(results).enumerate() {
        let number = [step as i32];
        let mut expected = [m, m, m, 1].map(|columns| vec![0; rows * columns]);
        let [slots, fetch_positions, fetch_slots, fetches] = &mut expected;
        let mut buffers = Buffers::new(Required {
            wanted: wanted.into(),
            resident: (&mut resident).into(),
            used: (&mut used).into(),
            step: (&number).into(),
            slots: slots.into(),
            fetch_positions: fetch_positions.into(),
            fetch_slots: fetch_slots.into(),
            fetches: fetches.into(),
        });
        if mapped {
            buffers = buffers.requests(&requests);
        }
        plain.call(&mut [0_u8; 0], buffers)?;
        let names = ["slots", "fetch_positions", "fetch_slots", "fetches"];
        for ((name, given), expected) in names.into_iter().zip(given).zip(expected) {
            let is_right = given.to_vec()? == expected;
            assert!(is_right, "{name} of step {step} on {}, mapped: {mapped}", handle.device());
        }
    }
    assert!(resident_there.to_vec()? == resident && used_there.to_vec()? == used);
    Ok(())
}

/// Each step works on the state that the step before it left, so the step must not read the state
/// before the step before it has ended.
#[test]
fn steps_by_dependent_launch_follow_one_another() -> Result<()> {
    for handle in crate::common::handles() {
        check_chain(&handle, false)?;
        check_chain(&handle, true)?;
    }
    Ok(())
}
