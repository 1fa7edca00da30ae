"""Operations on each number, or each pixel, by itself."""
