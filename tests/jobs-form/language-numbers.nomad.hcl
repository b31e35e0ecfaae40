job "language-numbers" {
  priority = 10 * 5
  group "g" {
    count = 7 % 4
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
        a = 1 + 1
        b = 10 / 4
        c = 0.1 + 0.2
        d = 9007199254740993
        e = 1.0
      }
      resources {
        cpu = max(50, 100)
        memory = parseint("40", 16)
      }
    }
  }
}
