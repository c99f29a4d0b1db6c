// Prints the vectors of murmur2.txt. With kafka-clients and slf4j-api on the class path:
// javac -cp "$CP" Murmur2Vectors.java && java -cp "$CP:." Murmur2Vectors
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import java.util.*;
public class Murmur2Vectors {
  static String hex(byte[] b){StringBuilder s=new StringBuilder();for(byte x:b)s.append(String.format("%02x",x));return s.toString();}
  public static void main(String[] a){
    Random r=new Random(5);
    List<byte[]> keys=new ArrayList<>();
    keys.add(new byte[0]);
    for(String s:new String[]{"21","foobar","a-little-bit-long-string","a-little-bit-longer-string","lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8","abc","visitor-1","\u00e9\u4e2d\ud83d\ude00"}) keys.add(s.getBytes(java.nio.charset.StandardCharsets.UTF_8));
    for(int n=1;n<=24;n++){byte[] b=new byte[n];r.nextBytes(b);keys.add(b);}
    byte[] f=new byte[7];Arrays.fill(f,(byte)0xff);keys.add(f);
    keys.add(new byte[5]);
    byte[] big=new byte[1000];r.nextBytes(big);keys.add(big);
    for(byte[] k:keys){
      System.out.println((k.length==0?"-":hex(k))+" "+Utils.murmur2(k)+" "+BuiltInPartitioner.partitionForKey(k,1)+" "+BuiltInPartitioner.partitionForKey(k,4)+" "+BuiltInPartitioner.partitionForKey(k,64)+" "+BuiltInPartitioner.partitionForKey(k,1000));
    }
  }
}
