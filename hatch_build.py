"""Build hook: the native kernel goes into wheels and editable installs where a C++ compiler is, else nothing.

A wheel with it fits its platform and any Python; one without it fits everything. `ACC_BUILD_KERNEL=0` leaves
it out, `ACC_BUILD_KERNEL=1` makes a failure one of the build.
"""

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = "acc_pytest/metrics/native/build.py"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernel into the tree, from where the wheel takes it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and tag the wheel for this platform; what fails is said and leaves the wheel without it."""
        wanted = os.environ.get("ACC_BUILD_KERNEL", "")
        if wanted == "0":
            return
        building = runpy.run_path(str(Path(self.root, BUILD)))
        try:
            library = building["build"]()
        except building["BuildError"] as error:
            if wanted == "1":
                raise
            self.app.display_warning(f"without the native kernel: {error}")
            return
        if version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(f"/{library.relative_to(Path(self.root).resolve()).as_posix()}")
