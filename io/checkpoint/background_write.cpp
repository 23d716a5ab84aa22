// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/background_write.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/stream_copy.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/io/base/io_context.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "moonhalo/io/codecs/crc32c.h"

namespace moonhalo::io {
namespace {

constexpr const char* kSaver = "checkpoint.save";
constexpr const char *kUnfinished = "checkpoint.json.unfinished", *kClaimed = "checkpoint.json.claimed";

}  // namespace

BackgroundWrite::BackgroundWrite(std::string path, int rank, int ranks, std::vector<CheckedFile> files, int64_t bytes,
                                 bool is_dry)
    : path_(std::move(path)), rank_(rank), ranks_(ranks), is_dry_(is_dry), files_(std::move(files)) {
  buffer_ = std::exchange(io_context->spare, {});  // touching new memory costs more than copying
  if (!buffer_.defined() || buffer_.numel() < bytes) buffer_ = empty_block({bytes}, at::kByte);
}

BackgroundWrite::~BackgroundWrite() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundWrite::add(Run run, const char* data) {
  // Past the caches, as memcpy does with what is larger than they are; these are pieces of it.
  stream_copy(static_cast<char*>(buffer_.mutable_data_ptr()) + filled_, data, static_cast<size_t>(run.bytes));
  run.position = filled_;
  runs_.push_back(run);
  filled_ += run.bytes;
}

void BackgroundWrite::start(std::string text, bool names) {
  finish_stream();
  text_ = std::move(text);
  names_ = names;
  if (is_dry_) {
    done_ = true;
    return;
  }
  thread_ = std::thread([this, memory = memory_counter()] {
    const CountMemoryFor rank(memory);
    try {
      write();
    } catch (...) {  // join() throws it
      problem_ = std::current_exception();
    }
    done_ = true;
  });
}

void BackgroundWrite::write() {
  std::map<int64_t, PositionedFile> files;
  const auto* data = static_cast<const char*>(buffer_.const_data_ptr());
  for (size_t i = 0; rank_ == 0 && i < files_.size(); ++i) {
    files.emplace(i, PositionedFile::open_to_write(kSaver, files_[i].path));
  }
  size_t tensors = 0;
  for (const CheckedFile& file : files_) tensors += file.tensors.size();
  std::vector<uint32_t> addends(tensors, 0);
  for (const Run& run : runs_) {
    addends[run.tensor] ^=
        crc32c_addend(data + run.position, static_cast<size_t>(run.bytes), static_cast<uint64_t>(run.behind));
    auto file = files.find(run.file);
    if (file == files.end()) {
      file = files.emplace(run.file, PositionedFile::open_to_write(kSaver, files_[run.file].path)).first;
    }
    file->second.write_at(data + run.position, run.bytes, run.offset);
  }
  for (auto& [i, file] : files) file.sync();
  if (rank_ == 0) {
    NewFile text(kSaver, inside(kUnfinished));
    text.write(text_.data(), text_.size());
    text.finish();
  }
  NewFile done(kSaver, done_file(rank_));
  done.write(addends.data(), addends.size() * sizeof(uint32_t));
  done.finish();
  if (everybody_is_done()) complete();
}

bool BackgroundWrite::everybody_is_done() const {
  std::error_code hidden;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!std::filesystem::exists(done_file(rank), hidden)) return false;
  }
  return true;
}

void BackgroundWrite::write_checksums() {
  std::vector<uint32_t> addends;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::string text = read_file(kSaver, done_file(rank));
    addends.resize(text.size() / sizeof(uint32_t));
    for (size_t i = 0; i < addends.size(); ++i) {
      uint32_t addend;
      std::memcpy(&addend, text.data() + i * sizeof addend, sizeof addend);
      addends[i] ^= addend;
    }
  }
  add_checksums(files_, addends);
  for (const CheckedFile& file : files_) {
    PositionedFile to = PositionedFile::open_to_write(kSaver, file.path);
    write_header(to, file);
    to.sync();
  }
}

void BackgroundWrite::complete() {
  // One of the threads that see that all are done can do this.
  if (std::rename(inside(kUnfinished).c_str(), inside(kClaimed).c_str()) != 0) return;
  write_checksums();
  give_name(kSaver, inside(kClaimed), inside(kCheckpointFile));
  for (int rank = 0; rank < ranks_; ++rank) std::remove(done_file(rank).c_str());
  names_ ? put_checkpoint_in_place(kSaver, path_) : store_on_disk(kSaver, path_ + ".partial");
}

void BackgroundWrite::join() {
  if (thread_.joinable()) thread_.join();
  io_context->spare = buffer_;
  if (problem_) std::rethrow_exception(problem_);
}

void BackgroundWrite::finish() {
  if (!is_dry_ && std::filesystem::exists(inside(kUnfinished))) complete();
}

}  // namespace moonhalo::io
