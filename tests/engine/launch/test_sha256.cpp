// SPDX-License-Identifier: Apache-2.0
// The examples of FIPS 180-4 and RFC 4231.
#include "moonhalo/engine/launch/sha256.h"

#include <gtest/gtest.h>

namespace moonhalo::test_sha256 {
namespace {

TEST(Sha256, Y21_HasTheDigestsOfFips180) {
  const struct {
    std::string text;
    const char* digest;
  } cases[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrst"
       "u",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1000000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& one : cases) EXPECT_EQ(hex(sha256(one.text)), one.digest) << one.text.size();
}

TEST(Sha256, Y21_HasTheCodesOfRfc4231) {
  const std::string long_key(131, '\xaa');
  const struct {
    std::string key, text;
    const char* digest;
  } cases[] = {
      {std::string(20, '\x0b'), "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {long_key, "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {long_key,
       "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
       "hashed "
       "before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const auto& one : cases) EXPECT_EQ(hex(hmac_sha256(one.key, one.text)), one.digest) << one.text;
}

TEST(Sha256, Y21_ComparesAllBytes) {
  const Digest drawn = random_digest();
  for (size_t i = 0; i < drawn.size(); ++i) {
    Digest other = drawn;
    EXPECT_TRUE(same_digest(drawn, other));
    other[i] ^= 1;
    EXPECT_FALSE(same_digest(drawn, other));
  }
  EXPECT_FALSE(same_digest(drawn, random_digest()));
}

}  // namespace
}  // namespace moonhalo::test_sha256
