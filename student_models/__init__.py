"""The vertical models: trained on recorded embeddings (LoopFM), evaluated, exported to ONNX."""
