job "task-constraint" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      constraint {
        attribute = "${attr.cpu.arch}"
        value = "amd64"
      }
      affinity {
        attribute = "${meta.x}"
        value = "y"
      }
    }
  }
}
