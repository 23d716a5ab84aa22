/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libcurl and libcrypto that HDF5 has for files on S3, which Moonhalo does not open. A wheel would
   otherwise carry some twenty libraries of the network. They fail as those of curl may, and HDF5 says so. */
#include <stddef.h>

enum { kFailedInit = 2 }; /* CURLE_FAILED_INIT */

int curl_global_init(long flags) {
  (void)flags;
  return kFailedInit;
}
void curl_global_cleanup(void) {}
void* curl_easy_init(void) { return NULL; }
void curl_easy_cleanup(void* handle) { (void)handle; }
int curl_easy_perform(void* handle) {
  (void)handle;
  return kFailedInit;
}
int curl_easy_setopt(void* handle, int option, ...) {
  (void)handle;
  (void)option;
  return kFailedInit;
}
void* curl_slist_append(void* list, const char* text) {
  (void)list;
  (void)text;
  return NULL;
}
void curl_slist_free_all(void* list) { (void)list; }

const void* EVP_sha256(void) { return NULL; }
unsigned char* HMAC(const void* kind, const void* key, int key_size, const unsigned char* data, size_t size,
                    unsigned char* digest, unsigned int* digest_size) {
  (void)kind, (void)key, (void)key_size, (void)data, (void)size, (void)digest, (void)digest_size;
  return NULL;
}
unsigned char* SHA256(const unsigned char* data, size_t size, unsigned char* digest) {
  (void)data, (void)size, (void)digest;
  return NULL;
}
