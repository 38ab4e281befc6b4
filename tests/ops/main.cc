#include "check.h"

int main() {
  TestElements();
  TestRows();
  TestDense();
  TestDescent();
  TestBatchNorm();
  TestColumns();
  TestInteraction();
  TestProducts();
  TestFieldsAndGates();
  TestFusions();
  TestCrossLayers();
  TestScorer();
  TestPlaceMap();
  TestRowNumbers();
  if (failures) std::printf("%d checks failed\n", failures);
  return failures != 0;
}
