"""The model that the engines of the live tests serve: random weights, the same in each process."""

VOCAB = 2048


def save(folder):
    """Writes the model to a folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        # Weights of this size make texts that do not run into loops.
        initializer_range=0.06,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    torch.manual_seed(7)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def phrase(rng):
    """What a text repeats: 12 tokens."""
    return [rng.randrange(3, VOCAB) for _ in range(12)]
