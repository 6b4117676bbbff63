"""Reads a file of podio's with ROOT as podio's RNTupleReader does, and dumps every member of every object.

Run by test_root.py in a process of its own: ROOT and the libraries of the tests need not agree on anything.
Usage: python read_with_root.py SPEC.json DUMP.bin, where the specification holds the path of the file, the members of
each struct, and the struct or primitive of each field of the events.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

SUPPORT = """
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>
#include <ROOT/RNTupleDescriptor.hxx>
#include <ROOT/RNTupleReader.hxx>

using Bytes = std::vector<char>;
using Dump = std::map<std::string, Bytes>;
using Words = std::vector<std::string>;

template <class T> void put(Bytes& to, const T& value) {
  auto first = reinterpret_cast<const char*>(&value);
  to.insert(to.end(), first, first + sizeof(T));
}
template <class T> void visit(Dump& dump, const std::string& path, const T& value) { put(dump[path], value); }
"""

READ = """
using WriteInfo = podio::root_utils::CollectionWriteInfo;

std::unique_ptr<ROOT::RNTupleReader> open(const std::string& category, const std::string& file) {
  ROOT::RNTupleDescriptor::RCreateModelOptions options;
  options.SetEmulateUnknownTypes(true);
  return ROOT::RNTupleReader::Open(options, category, file);
}

struct Field {
  virtual ~Field() = default;
  virtual void dump(Dump& to, const std::string& name) const = 0;
};

template <class T> struct TypedField : Field {
  std::vector<T> objects;
  TypedField(ROOT::REntry& entry, const std::string& name) { entry.BindRawPtr(name, &objects); }
  void dump(Dump& to, const std::string& name) const override {
    put(to["counts:" + name], static_cast<std::int64_t>(objects.size()));
    for (const auto& object : objects) visit(to, name, object);
  }
};

template <class T> void parameters(ROOT::RNTupleReader& reader, const std::string& kind) {
  auto keys = reader.GetView<Words>("GP" + kind + "Keys");
  auto values = reader.GetView<std::vector<std::vector<T>>>("GP" + kind + "Values");
  for (ROOT::NTupleSize_t i = 0; i < reader.GetNEntries(); ++i)
    if (keys(i).size() != values(i).size()) throw std::runtime_error("keys and values of " + kind + " differ");
}

void all_parameters(ROOT::RNTupleReader& reader) {
  parameters<int>(reader, "Int");
  parameters<float>(reader, "Float");
  parameters<double>(reader, "Double");
  parameters<std::string>(reader, "String");
}

void metadata(Dump& to, const std::string& file) {
  auto reader = open("podio_metadata", file);
  auto version = reader->GetView<std::vector<std::uint16_t>>("PodioBuildVersion");
  for (auto number : version(0)) put(to["version"], number);
  auto models = reader->GetView<std::vector<std::tuple<std::string, std::string>>>("EDMDefinitions");
  for (const auto& [name, text] : models(0)) to["model:" + name] = Bytes(text.begin(), text.end());
  auto categories = reader->GetView<Words>("availableCategories");
  for (const auto& category : categories(0)) {
    auto view = reader->GetView<std::vector<WriteInfo>>(category + "___CollectionTypeInfo");
    std::string lines;
    for (const auto& info : view(0))
      lines += std::to_string(info.collectionID) + " " + info.dataType + " " + std::to_string(info.isSubset) + " " +
               std::to_string(info.schemaVersion) + " " + info.name + " " + info.storageType + "\\n";
    to["category:" + category] = Bytes(lines.begin(), lines.end());
    all_parameters(*open(category, file));
  }
}
"""


def struct(name: str, members: list[list[str]]) -> str:
    """A struct, and how each of its members is visited."""
    space, _, short = name.rpartition("::")
    fields = "".join(f"  {cpp_type} {member}{{}};\n" for member, cpp_type in members)
    visits = "".join(f'  visit(dump, path + ".{member}", object.{member});\n' for member, _ in members)
    return (
        f"namespace {space} {{ struct {short} {{\n{fields}}}; }}\n"
        f"template <> void visit(Dump& dump, const std::string& path, const {name}& object) {{\n{visits}}}\n"
    )


def program(spec: dict[str, Any]) -> str:
    """C++ of the whole reader."""
    info = (
        "namespace podio::root_utils { struct CollectionWriteInfo { std::uint32_t collectionID{}; std::string dataType;"
        " bool isSubset{}; std::uint32_t schemaVersion{}; std::string name; std::string storageType; }; }\n"
    )
    structs = "".join(struct(name, members) for name, members in spec["structs"])
    bound = "".join(
        f'  fields["{name}"] = std::make_unique<TypedField<{cpp_type}>>(*entry, "{name}");\n'
        for name, cpp_type in spec["fields"].items()
    )
    return f"""{SUPPORT}{info}{structs}{READ}
void run(const std::string& file, const std::string& output) {{
  Dump dump;
  metadata(dump, file);
  auto reader = open("events", file);
  auto entry = reader->GetModel().CreateEntry();
  std::map<std::string, std::unique_ptr<Field>> fields;
{bound}
  for (ROOT::NTupleSize_t i = 0; i < reader->GetNEntries(); ++i) {{
    reader->LoadEntry(i, *entry);
    for (const auto& [name, field] : fields) field->dump(dump, name);
  }}
  auto stream = std::fopen(output.c_str(), "wb");
  for (const auto& [path, bytes] : dump) {{
    std::fprintf(stream, "%s\\n%zu\\n", path.c_str(), bytes.size());
    std::fwrite(bytes.data(), 1, bytes.size(), stream);
  }}
  std::fclose(stream);
}}
"""


def main() -> int:
    """Compile and run."""
    warnings.simplefilter("ignore")  # "This distribution of ROOT is in alpha stage"
    import ROOT

    spec = json.loads(Path(sys.argv[1]).read_text())
    if not ROOT.gInterpreter.Declare(program(spec)):
        return 1
    ROOT.run(spec["file"], sys.argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
