"""FastDeploy's compiled operators, those that are replaced."""

from spec_ops.fastdeploy import hybrid_mtp_ngram, ngram_match

__all__ = ["hybrid_mtp_ngram", "ngram_match"]
