"""The lowest versions of the dependencies, as constraints."""

import lowest


def test_each_dependency_has_its_lowest_version(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\ndependencies = ["a>=1.5", "b-c[d]>=2024.5.1", "e"]\n'
        '[project.optional-dependencies]\ntest = ["f>=3"]\n'
    )
    assert lowest.lowest(project) == {"a": "1.5", "b-c": "2024.5.1", "f": "3"}
