#include "check.h"

int main() {
  TestElements();
  TestRows();
  TestDense();
  TestDenseUpdates();
  TestBatchNorm();
  TestColumns();
  TestInteraction();
  TestProducts();
  TestFieldsAndGates();
  TestFusions();
  TestCrossLayers();
  TestPace();
  TestScorer();
  TestPlaceMap();
  TestRowNumbers();
  if (failures) std::printf("%d checks failed\n", failures);
  return failures != 0;
}
