// Stand-in for Gaudi.
#pragma once
#include <stdexcept>
#include <string>

enum class StatusCode { SUCCESS, FAILURE };

struct GaudiException : std::runtime_error {
  GaudiException(const std::string& message, const std::string& tag, StatusCode)
      : std::runtime_error(tag + " : " + message) {}
};
