// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/profile_files.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/profile/trace.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/codecs/gzip.h"

namespace moonhalo::io {
namespace {

constexpr const char* kSummaryFile = "profile.json";

void write_file(const std::filesystem::path& path, const std::string& text) {
  NewFile file("profile", path.string());
  file.write(text.data(), text.size());
  file.finish();
}

std::string all_tables(const ProfileSummary& summary) {
  std::string text;
  for (size_t by = 0; by < summary.tables.size(); ++by)
    text += (by > 0 ? "\n" : "") + profile_table(summary, static_cast<ProfileBy>(by));
  return text;
}

void write_files(const Profiler& profiler, const std::string& folder) {
  std::error_code error, unreadable;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK_VALUE(std::filesystem::is_directory(folder, unreadable), "profile: cannot make the folder \"", folder,
                    "\"\n  have  ", error ? error.message() : "a file of that name", "\n  fix   give another folder");
  const std::filesystem::path path = folder;
  write_file(path / kSummaryFile, profiler.summary().to_json());
  write_file(path / "table.txt", all_tables(profiler.summary()));
  write_file(path / "trace.json.gz", gzip(chrome_trace(profiler.records())));
  write_file(path / "flame.txt", flame_stacks(profiler.records()));
  write_file(path / "memory.txt", memory_table(profiler.summary()));
  write_file(path / "skew.txt", skew_text(profiler.summary().skew, std::ssize(profiler.summary().steps)));
}

}  // namespace

void save_profile(const Profiler& profiler, const std::string& folder) {
  profiler.summary();
  const ScopedStatsPause not_counted;
  fail_together(profiler.world(), [&] {
    if (profiler.world().rank() == 0) write_files(profiler, folder);
  });
}

ProfileSummary read_profile(const std::string& folder) {
  std::filesystem::path file = std::filesystem::path(folder) / kSummaryFile;
  const std::filesystem::path of_run = std::filesystem::path(folder) / "profile" / kSummaryFile;
  if (!std::filesystem::exists(file) && std::filesystem::exists(of_run)) file = of_run;
  const std::string path = file.string();
  return ProfileSummary::from_json(read_file("profile", path), path);
}

}  // namespace moonhalo::io
