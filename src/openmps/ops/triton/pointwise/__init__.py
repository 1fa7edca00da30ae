"""Operations on each number, or each pixel, in Triton."""
