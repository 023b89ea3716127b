//! The tokens of a request depend on the request alone: not on the batch, the slot, the other
//! requests, or the draft at which a step begins.

use spec::ops::RejectionSample;
use spec::ops::rejection_sample::{Buffers, Recovery, Required};
use spec::{DType, Handle, Result, TensorDesc};
use spec_conformance::{Data, Held, Rng};

const VOCAB: usize = 700;
const LONGEST: usize = 6;
const REQUESTS: usize = 24;

/// The inputs of a request for the step that verifies its drafts.
struct Request {
    seed: u64,
    position: i64,
    greedy: bool,
    /// The rows of the target's probabilities (and below, of the draft's).
    target: Vec<Vec<f32>>,
    draft: Vec<Vec<f32>>,
    drafts: Vec<i64>,
    bonus: i64,
}

impl Request {
    fn random(rng: &mut Rng) -> Request {
        let drafts = rng.below(LONGEST + 1);
        let position = rng.pick(&[0, 1024, i64::from(i32::MAX) - 2, i64::MAX - 2, -3]);
        let mut request = Request {
            seed: rng.next(),
            position,
            greedy: rng.chance(3),
            target: Vec::new(),
            draft: Vec::new(),
            drafts: Vec::new(),
            bonus: rng.below(VOCAB) as i64,
        };
        for _ in 0..drafts {
            let logits: Vec<f32> = (0..VOCAB).map(|_| rng.normal() * 2.0).collect();
            let near: Vec<f32> = logits.iter().map(|x| x + rng.normal() * 0.3).collect();
            // The drafts: sometimes the likeliest token, sometimes any token.
            let largest = |row: &[f32]| {
                let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
                best.map_or(0, |(token, _)| token as i64)
            };
            let likely = if request.greedy { largest(&logits) } else { largest(&near) };
            let token = if rng.chance(6) { rng.below(VOCAB) as i64 } else { likely };
            request.drafts.push(token);
            request.target.push(softmax(&logits));
            request.draft.push(softmax(&near));
        }
        request
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// A slot of a batch: the number of the request, and the number of its first draft in this
/// step. Earlier drafts were decided in an earlier step.
type Slot = (usize, usize);

/// The settings of a call, none of which may change a request's tokens.
#[derive(Clone, Copy, Debug)]
struct Call {
    recovery: Recovery,
    probs: bool,
    ids: DType,
    greedy: DType,
    leading: bool,
}

/// Elements of an integer or truth type in a device's memory.
fn upload(handle: &Handle, dtype: DType, values: Vec<i64>) -> Result<Held> {
    match dtype {
        DType::Bool => {
            let bytes: Vec<u8> = values.iter().map(|value| *value as u8).collect();
            Held::upload(handle, dtype, &bytes)
        }
        _ => Held::upload(handle, dtype, Rng::integers(dtype, values).bytes()),
    }
}

/// The tokens that each slot emits.
fn verify(
    handle: &Handle,
    call: Call,
    requests: &[Request],
    batch: &[Slot],
) -> Result<Vec<Vec<i64>>> {
    let Call { recovery, probs, ids, greedy, leading } = call;
    let of = |slot: &Slot| (&requests[slot.0], slot.1);
    let (mut target, mut draft, mut drafts) = (Vec::new(), Vec::new(), Vec::new());
    let mut offsets = if leading { vec![0] } else { Vec::new() };
    for (request, from) in batch.iter().map(of) {
        target.extend(request.target[from..].concat());
        draft.extend(request.draft[from..].concat());
        drafts.extend_from_slice(&request.drafts[from..]);
        offsets.push(drafts.len() as i64);
    }
    let (slots, tokens) = (batch.len(), drafts.len());
    let params = RejectionSample::lossless(LONGEST).recovery(recovery);
    let vector = |dtype, len| TensorDesc::new(dtype, [len]);
    let mut tensors = params.tensors(slots, tokens, VOCAB);
    tensors.draft_probs = probs.then_some(tensors.target_probs);
    tensors.draft_token_ids = vector(ids, tokens);
    tensors.bonus_token_ids = vector(ids, slots);
    tensors.cu_num_draft = vector(ids, offsets.len());
    tensors.greedy = Some(vector(greedy, slots));
    tensors.output_token_ids = TensorDesc::new(ids, [slots, LONGEST + 1]);
    let op = handle.create(&params, &tensors)?;
    let mut workspace = op.workspace(handle)?;
    let per_slot = |value: &dyn Fn(&Request, usize) -> i64| -> Vec<i64> {
        batch.iter().map(of).map(|(request, from)| value(request, from)).collect()
    };
    let position = |request: &Request, from| request.position.wrapping_add(from as i64);
    let seeds: Vec<u64> = batch.iter().map(|slot| requests[slot.0].seed).collect();
    let (target, draft) = (handle.upload(&target)?, handle.upload(&draft)?);
    let drafts = upload(handle, ids, drafts)?;
    let bonus = upload(handle, ids, per_slot(&|request, _| request.bonus))?;
    let offsets = upload(handle, ids, offsets)?;
    let seeds = handle.upload(&seeds)?;
    let positions = handle.upload(&per_slot(&position))?;
    let greedy = upload(handle, greedy, per_slot(&|request, _| i64::from(request.greedy)))?;
    let mut output = upload(handle, ids, vec![77; slots * (LONGEST + 1)])?;
    let mut counts = [0; 4].map(|_| handle.allocate::<i32>(slots));
    let [Ok(emitted), Ok(accepted), Ok(recovered), Ok(bonuses)] = &mut counts else {
        panic!("no memory for {slots} numbers on {}", handle.device());
    };
    let mut buffers = Buffers::new(Required {
        target_probs: target.view(),
        draft_token_ids: drafts.view(),
        bonus_token_ids: bonus.view(),
        cu_num_draft: offsets.view(),
        output_token_ids: output.view_mut(),
        num_accepted: emitted.view_mut(),
        accepted_counts: accepted.view_mut(),
        recovered_counts: recovered.view_mut(),
        bonus_counts: bonuses.view_mut(),
    })
    .seeds(seeds.view())
    .positions(positions.view())
    .greedy(greedy.view());
    buffers.draft_probs = probs.then(|| draft.view());
    op.call(&mut workspace, buffers)?;
    handle.synchronize()?;
    let output: Vec<i64> = match output.read(&Rng::integers(ids, Vec::new()))? {
        Data::I32(output) => output.into_iter().map(i64::from).collect(),
        Data::U32(output) => output.into_iter().map(|id| i64::from(id.cast_signed())).collect(),
        Data::I64(output) => output,
        other => panic!("{} is no type of ids", other.dtype()),
    };
    let emitted = emitted.to_vec()?;
    Ok(output
        .chunks(LONGEST + 1)
        .zip(&emitted)
        .map(|(row, &emitted)| {
            let (tokens, rest) = row.split_at(emitted as usize);
            assert!(rest.iter().all(|&token| token == -1), "{row:?}, {emitted} emitted");
            tokens.to_vec()
        })
        .collect())
}

fn requests(seed: u64) -> Vec<Request> {
    let mut rng = Rng::new(seed, "requests");
    (0..REQUESTS).map(|_| Request::random(&mut rng)).collect()
}

const CALL: Call = Call {
    recovery: Recovery::Sample,
    probs: true,
    ids: DType::I32,
    greedy: DType::I32,
    leading: true,
};

fn calls() -> Vec<Call> {
    vec![
        CALL,
        Call { probs: false, ids: DType::I64, greedy: DType::I8, leading: false, ..CALL },
        Call { recovery: Recovery::Argmax, ids: DType::U32, greedy: DType::U8, ..CALL },
        Call {
            probs: false,
            recovery: Recovery::Argmax,
            greedy: DType::Bool,
            leading: false,
            ..CALL
        },
        Call { greedy: DType::Bool, ids: DType::U32, ..CALL },
    ]
}

/// Batches in which all requests start with their first draft.
fn batches(rng: &mut Rng) -> Vec<Vec<Slot>> {
    let whole = |order: Vec<usize>| order.into_iter().map(|request| (request, 0)).collect();
    let permuted: Vec<Slot> = whole(rng.permutation(REQUESTS));
    let (first, second) = permuted.split_at(rng.between(1, REQUESTS - 1));
    vec![
        whole((0..REQUESTS).collect()),
        permuted.clone(),
        first.to_vec(),
        second.to_vec(),
        // Each request twice: the batch, and the batch in reverse order.
        permuted.iter().chain(permuted.iter().rev()).copied().collect(),
    ]
}

#[test]
fn tokens_belong_to_requests() -> Result<()> {
    let cpu = Handle::cpu()?;
    let requests = requests(1);
    for call in calls() {
        let alone = |request| Ok(verify(&cpu, call, &requests, &[(request, 0)])?.remove(0));
        let expected = (0..REQUESTS).map(alone).collect::<Result<Vec<Vec<i64>>>>()?;
        // The number of accepted drafts of each request.
        let accepted: Vec<usize> = expected.iter().map(|tokens| tokens.len() - 1).collect();
        let rejected = |b: &usize| accepted[*b] < requests[*b].drafts.len();
        let recovered = (0..REQUESTS).filter(rejected).count();
        assert!(accepted.iter().sum::<usize>() > REQUESTS / 2, "too few drafts are accepted");
        assert!(recovered > REQUESTS / 4, "too few drafts are recovered");
        for handle in crate::common::handles() {
            let mut rng = Rng::new(2, "batches");
            let mut all = batches(&mut rng);
            // A request is preempted after any of its accepted drafts and resumed in another
            // slot.
            all.extend((0..4).map(|_| {
                let order = rng.permutation(REQUESTS);
                order.into_iter().map(|b| (b, rng.between(0, accepted[b]))).collect()
            }));
            for batch in all {
                let found = verify(&handle, call, &requests, &batch)?;
                for ((request, from), found) in batch.iter().zip(found) {
                    let expected = &expected[*request][*from..];
                    let device = handle.device();
                    assert_eq!(found, expected, "{device}, {call:?}, {request} from {from}");
                }
            }
        }
    }
    Ok(())
}

/// Another seed, or another position, gives other tokens, except for greedy requests.
#[test]
fn seeds_and_positions_matter() -> Result<()> {
    for handle in crate::common::handles() {
        let all: Vec<Slot> = (0..REQUESTS).map(|request| (request, 0)).collect();
        let mut requests = requests(4);
        let before = verify(&handle, CALL, &requests, &all)?;
        for seeds in [true, false] {
            for request in &mut requests {
                if seeds {
                    request.seed ^= 1 << 40;
                } else {
                    request.position ^= 1 << 40;
                }
            }
            let after = verify(&handle, CALL, &requests, &all)?;
            let differ = |b: &usize| before[*b] != after[*b];
            let changed: Vec<usize> = (0..REQUESTS).filter(differ).collect();
            assert!(changed.len() > REQUESTS / 4, "{}: {changed:?}", handle.device());
            assert!(changed.iter().all(|b| !requests[*b].greedy), "{changed:?}");
        }
    }
    Ok(())
}
