"""A Keras language model and its training step in TensorFlow; nothing in it is for the simulator.

The model is made of Keras's own layers, in bf16 with weights in f32. The step is what users write
in place of `fit`: a tape, a loss, the optimizer.
"""

import keras
import tensorflow as tf


def decoder(layers: int, width: int, heads: int, vocab: int, length: int) -> keras.Model:
    """Return a decoder with pre-normalisation and learned positions."""
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    tokens = keras.Input((length,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(vocab, width, name="embedding")(tokens)
    x = x + keras.layers.Embedding(length, width, name="positions")(tf.range(length))
    for number in range(layers):
        x = block(x, width, heads, f"block_{number}")
    x = keras.layers.LayerNormalization(name="norm")(x)
    return keras.Model(tokens, keras.layers.Dense(vocab, name="head")(x), name="decoder")


def block(x: tf.Tensor, width: int, heads: int, name: str) -> tf.Tensor:
    """Return the output of one layer: causal attention, then an MLP."""
    y = keras.layers.LayerNormalization(name=f"{name}_attention_norm")(x)
    attend = keras.layers.MultiHeadAttention(heads, width // heads, name=f"{name}_attention")
    x = x + attend(y, y, use_causal_mask=True)
    y = keras.layers.LayerNormalization(name=f"{name}_mlp_norm")(x)
    y = keras.layers.Dense(4 * width, activation="gelu", name=f"{name}_up")(y)
    return x + keras.layers.Dense(width, name=f"{name}_down")(y)


def training_step(model: keras.Model) -> tf.types.experimental.GenericFunction:
    """Return the compiled step: tokens and targets, [batch, length], to the loss."""
    optimizer = keras.optimizers.AdamW(3e-4, clipnorm=None)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(jit_compile=True)
    def train_step(tokens: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(tokens, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step
